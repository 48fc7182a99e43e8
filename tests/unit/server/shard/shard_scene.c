#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/server/shard/shard_scene.h"

enum { MIB = 1 << 20 };

const char *scene_provider = "loop", *scene_fault;

const char *scene_loop[] = {"loop", NULL}, *scene_faulty[] = {"fault+loop", "seed=5,again=0.2,delay=0.2:1ms,hold=5ms"};

void scene_open(struct scene *scene) {
  scene->shard = cluster_shard(scene_provider, scene_fault, 64 * MIB);
  cluster_open(&scene->cluster, scene->shard, scene_provider, scene_fault, 77, RANKS);
  scene->tensor = cluster_tensor(&scene->cluster, 20000, 2, ZPS_DTYPE_F32, ZPS_OP_SUM, 5, 0.3);
}

void scene_close(struct scene *scene) {
  cluster_round(&scene->cluster, scene->tensor, 1000000);
  cluster_drain(scene->shard);
  cluster_check_released(scene->shard);
  cluster_close(&scene->cluster);
  zps_shard_destroy(scene->shard);
}

void scene_push(struct scene *scene, uint64_t step, uint32_t rank) {
  cluster_push(&scene->cluster, scene->tensor, step, rank, PATIENCE_NEVER_MS);
}

void scene_push_and_wait(struct scene *scene, uint64_t step, uint32_t rank) {
  const uint64_t bytes_before = cluster_stats(&scene->cluster, scene->tensor).bytes_in;
  const uint64_t bytes = cluster_push(&scene->cluster, scene->tensor, step, rank, PATIENCE_NEVER_MS);
  while (cluster_stats(&scene->cluster, scene->tensor).bytes_in < bytes_before + bytes) patience_nap();
}

void scene_abort(struct scene *scene, uint64_t step, uint32_t rank, zps_err_t code, const char *text) {
  cluster_abort(&scene->cluster, scene->tensor, step, rank, code, text);
}

int scene_on_fabric(void **state) {
  const char **fabric = *state;
  scene_provider = fabric[0];
  scene_fault = fabric[1];
  return 0;
}
