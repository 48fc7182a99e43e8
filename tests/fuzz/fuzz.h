/* A fuzz target: libFuzzer's entry point, which replay.c calls too. Must survive any bytes. */
#ifndef ZPS_TESTS_FUZZ_H
#define ZPS_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
