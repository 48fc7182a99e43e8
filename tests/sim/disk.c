#include "tests/sim/disk.h"

#include <stdlib.h>
#include <string.h>

#include "server/state/store.h"
#include "tests/sim/break.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sched.h"

#define SYNC_NS (4 * ZPS_NS_PER_MS)

static struct {
  struct zps_store_backend backend;
  char *data;
  size_t len, durable, cap;
} disk;

static zps_err_t disk_read(struct zps_store_backend *backend, char **data_p, size_t *len_p, struct zps_error *error) {
  (void)backend;
  if (sim_memory_fails()) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to read the state");
  *data_p = malloc(disk.len + 1);
  if (disk.len > 0) memcpy(*data_p, disk.data, disk.len);
  *len_p = disk.len;
  return ZPS_OK;
}

static void append(const char *data, size_t len) {
  if (disk.len + len > disk.cap) {
    disk.cap = 2 * (disk.len + len);
    disk.data = realloc(disk.data, disk.cap);
  }
  memcpy(disk.data + disk.len, data, len);
  disk.len += len;
}

static zps_err_t disk_write(struct zps_store_backend *backend, const char *data, size_t len, struct zps_error *error) {
  (void)backend, (void)error;
  append(data, len);
  return ZPS_OK;
}

/* The process may die meanwhile. */
static zps_err_t disk_sync(struct zps_store_backend *backend, struct zps_error *error) {
  const size_t len = disk.len;
  (void)backend, (void)error;
  sim_sleep(sim_random(SYNC_NS));
  if (!sim_breaks_sync()) disk.durable = len;
  sim_cluster_synced();
  return ZPS_OK;
}

static zps_err_t disk_replace(struct zps_store_backend *backend, const char *data, size_t len,
                              struct zps_error *error) {
  (void)backend, (void)error;
  sim_sleep(sim_random(SYNC_NS));
  disk.len = 0;
  append(data, len);
  disk.durable = disk.len;
  return ZPS_OK;
}

static void disk_close(struct zps_store_backend *backend) {
  (void)backend;
}

static const struct zps_store_ops disk_ops = {.read = disk_read,
                                              .write = disk_write,
                                              .sync = disk_sync,
                                              .replace = disk_replace,
                                              .cut = disk_replace,
                                              .close = disk_close};

zps_err_t zps_store_file_open(const char *folder, struct zps_store_backend **backend_p, struct zps_error *error) {
  (void)folder, (void)error;
  disk.backend = (struct zps_store_backend){.ops = &disk_ops, .name = "the simulation's disk"};
  *backend_p = &disk.backend;
  return ZPS_OK;
}

void sim_disk_tear(void) {
  disk.len = disk.durable += sim_random(disk.len - disk.durable + 1);
}

size_t sim_disk_len(void) {
  return disk.len;
}
