/* The kernels' own source, compiled for the host: what encodes. */
#include "gpu/cuda/coo.cu"
#include "gpu/cuda/extract.cu"
#include "gpu/cuda/hierarchical.cu"
#include "gpu/cuda/plan.cu"
#include "gpu/cuda/radix.cu"
#include "gpu/cuda/rice.cu"
#include "gpu/cuda/sums.cu"
#include "gpu/cuda/write.cu"
