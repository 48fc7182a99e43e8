/* The kernels' own source, compiled for the host: what decodes and adds. */
#include "gpu/cuda/decode.cu"
#include "gpu/cuda/merge.cu"
#include "gpu/cuda/rice_read.cu"
