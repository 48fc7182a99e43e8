/*
 * The GPU that a job's gradients are on: opened at start where the options name it, else with the first device buffer.
 * Its work is submitted by two threads, one for gradients and one for results, which wait by asking events.
 */
#ifndef ZPS_WORKER_DEVICE_DEVICE_H
#define ZPS_WORKER_DEVICE_DEVICE_H

#include <stdatomic.h>

#include "common/base/workpool.h"
#include "common/session/engine.h"
#include "gpu/device.h"
#include "worker/device/stage.h"
#include "worker/device/stream_word.h"
#include "zenps/zenps.h"

/* How the fabric gets at device memory: not at all, by its address, or by the dmabuf it is exported as. */
enum zps_memory_path { ZPS_PATH_STAGED, ZPS_PATH_HMEM, ZPS_PATH_DMABUF };

struct zps_worker_device {
  struct zps_device *device;
  atomic_uint refs; /* the job's, and one for each result in its memory that is still there */
  int index;
  struct zps_workpool *in_pool, *out_pool; /* one thread each */
  struct zps_stage *in_stage, *out_stage;  /* those threads' */
  struct zps_words words;                  /* the words that the trainer's streams wait for */
  enum zps_memory_path path;
  uint64_t serial; /* in_pool's thread: of what was last encoded */
};

/* `library`: as zps_device_load(). */
zps_err_t zps_worker_device_open(const char *library, int index, struct zps_worker_device **device_p,
                                 struct zps_error *error) ZPS_MUSTCHECK;
/* Finds the path, by registering memory of the device. */
void zps_worker_device_probe(struct zps_worker_device *device, struct zps_engine *engine);
/* The path's name, as the coordinator is told. */
const char *zps_worker_device_path(const struct zps_worker_device *device);
/* On the engine thread: registers memory of the device on its path, which is not that of staging. */
zps_err_t zps_worker_device_register(const struct zps_worker_device *device, struct zps_net *net, void *at,
                                     size_t len_bytes, struct zps_net_mem *mem_p,
                                     struct zps_error *error) ZPS_MUSTCHECK;
/* Stops the threads. NULL is allowed, here and below. */
void zps_worker_device_stop(struct zps_worker_device *device);
/* Once no round is left: drops the reference of zps_worker_device_open(). */
void zps_worker_device_close(struct zps_worker_device *device);
/* For memory of the device that may outlive its job, which can be freed as long as there is a reference. */
struct zps_worker_device *zps_worker_device_ref(struct zps_worker_device *device);
void zps_worker_device_unref(struct zps_worker_device *device);

/* Grows memory of the device or pinned memory to at least `len_bytes`, without keeping what is in it. */
zps_err_t zps_worker_device_grow(struct zps_worker_device *device, enum zps_memory memory, void **at_p, size_t *cap_p,
                                 size_t len_bytes, struct zps_error *error) ZPS_MUSTCHECK;
/* Grows memory of the device that no fabric is to reach, in the order of a stream that needs the old memory no more.
 * Nothing waits for the allocation. */
zps_err_t zps_worker_device_grow_on(struct zps_worker_device *device, void **at_p, size_t *cap_p, size_t len_bytes,
                                    zps_stream_t stream, struct zps_error *error) ZPS_MUSTCHECK;

#endif
