/* The code that strings the kernels together, over the emulation's runtime. */
#include "gpu/cuda/decoder.cu"
#include "gpu/cuda/device.cu"
#include "gpu/cuda/encoder.cu"
#include "gpu/cuda/encoder_hash.cu"
#include "gpu/cuda/encoder_layout.cu"
#include "gpu/cuda/hasher.cu"
#include "gpu/cuda/memory.cu"
#include "gpu/cuda/selector.cu"
