/* For functions in headers that kernels share with the host. */
#ifndef ZPS_BASE_INLINE_H
#define ZPS_BASE_INLINE_H

#ifdef __CUDACC__
#define ZPS_INLINE static inline __host__ __device__
#else
#define ZPS_INLINE static inline
#endif

#endif
