/* Functions by which tests steer the emulation and question it. */
#ifndef ZPS_GPU_EMU_CONTROL_H
#define ZPS_GPU_EMU_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Starts the generator that chooses the thread that runs next, and how many blocks are resident (1 to 4). */
void zps_emu_seed(uint64_t seed);
/* The errors of the kernels since the last call, or NULL; valid until the next call. */
const char *zps_emu_take_error(void);
/* A kernel that takes more turns than this is given up; hundreds of millions at first. */
void zps_emu_limit_turns(uint64_t n);
/* Times that another thread was chosen, since the start. */
uint64_t zps_emu_switches(void);
/* True when the host may touch [at, at + 1): false for device memory outside of the kernels and copies that use it. */
bool zps_emu_is_device(const void *at);
/* Allocations of device and pinned memory that were not freed. */
uint64_t zps_emu_allocations(void);
/* Work on the stream stays queued until the stream is let go: a device that does not get there. */
void zps_emu_hold(void *stream, bool hold);
/* Calls so far that bring a GPU, or all of a stream, to a stop, or may: allocating and freeing out of a stream's order,
 * waiting for a whole stream. */
uint64_t zps_emu_stops(void);
/* The n-th allocation of device memory from here on fails, as do all after it; UINT64_MAX: none. */
void zps_emu_fail_allocation(uint64_t n);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
