/* The kernels' own source, compiled for the host: those that decode and add. */
#include "gpu/cuda/decode.cu"
#include "gpu/cuda/merge.cu"
#include "gpu/cuda/rice_read.cu"
