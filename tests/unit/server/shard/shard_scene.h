/* A shard and a job of three ranks, between which something is wrong; over the in-process fabric, and one with faults.
 */
#ifndef ZPS_TESTS_SERVER_SHARD_SHARD_SCENE_H
#define ZPS_TESTS_SERVER_SHARD_SHARD_SCENE_H

#include "tests/unit/server/shard/shard_cluster.h"

enum { RANKS = 3 };

struct scene {
  struct zps_shard *shard;
  struct cluster cluster;
  struct cluster_tensor *tensor;
};

/* Partitions 0, 1, 3, 4 of five are here. */
void scene_open(struct scene *scene);
/* A round of all ranks still works after trouble. All memory was given back. */
void scene_close(struct scene *scene);
void scene_push(struct scene *scene, uint64_t step, uint32_t rank);
/* And it is here. */
void scene_push_and_wait(struct scene *scene, uint64_t step, uint32_t rank);
/* The next that the rank hears of the step is that it was aborted, with this code and a text that has `text` in it. */
void scene_abort(struct scene *scene, uint64_t step, uint32_t rank, zps_err_t code, const char *text);

/* Set-up of a test: the fabric, and its faults or NULL. */
int scene_on_fabric(void **state);
extern const char *scene_loop[], *scene_faulty[];
extern const char *scene_provider, *scene_fault; /* of the test that runs */
#define ON_BOTH(test)                                               \
  {#test, test, scene_on_fabric, NULL, scene_loop}, {               \
#test " with faults", test, scene_on_fabric, NULL, scene_faulty \
  }

#endif
