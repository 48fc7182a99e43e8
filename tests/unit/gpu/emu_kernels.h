/* Kernels that are right, and wrong kernels that the emulation must report. Each runs to its end. */
#ifndef ZPS_TESTS_GPU_EMU_KERNELS_H
#define ZPS_TESTS_GPU_EMU_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sums 1..n in blocks that look back at each other; the prefix sum of all. */
uint64_t emu_look_back(uint32_t n_tiles);
/* Adds 1 to a counter from many threads: with an atomic, or with a load and a store. */
uint32_t emu_count(bool is_atomic, uint32_t n_threads);
/* Sums 256 numbers in shared memory, with or without the barrier between writing and reading. */
uint32_t emu_share(bool has_barrier);

enum emu_mistake {
  EMU_BARRIER_SKIPPED,    /* half of a block returns before a barrier */
  EMU_BARRIERS_DIFFER,    /* the halves of a block are at two barriers */
  EMU_LANE_MISSING,       /* a collective of all lanes that one does not join */
  EMU_LANE_OUTSIDE,       /* a lane that is not in its mask */
  EMU_COLLECTIVES_DIFFER, /* a ballot and a shuffle */
  EMU_SOURCE_OUTSIDE,     /* a shuffle from a lane that is not in the mask */
  EMU_ENDLESS,            /* a wait for an event that never comes */
  EMU_GRID_TOO_LARGE,     /* a block of 2048 threads */
};
void emu_mistake(enum emu_mistake mistake);

/* Writes n words of device memory and reads word `at` of it in a kernel. */
void emu_read_device(uint32_t n, uint32_t at);
/* A piece of device memory, for the host to touch. */
void *emu_device_memory(uint32_t n);
void emu_device_free(void *memory);

/* Algorithm 1's parallel memory, one hash function: n rows that all want slots 0..n_slots-1, so that they race. */
enum emu_claim {
  EMU_CLAIM_BLINDLY,   /* each row that saw the slot empty has it */
  EMU_CLAIM_AT_ONCE,   /* a row that reads itself back at once has it */
  EMU_CLAIM_AFTER_ALL, /* a row that reads itself back after all have written has it */
};
/* How many rows believe that they have a slot, less how many slots are taken: rows that are lost. */
uint32_t emu_claim(enum emu_claim how, uint32_t n_rows, uint32_t n_slots);

#ifdef __cplusplus
}
#endif
#endif
