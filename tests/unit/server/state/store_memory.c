#include "tests/unit/server/state/store_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static zps_err_t memory_read(struct zps_store_backend *backend, char **data_p, size_t *len_p, struct zps_error *error) {
  const struct store_memory *memory = (struct store_memory *)backend;
  (void)error;
  *data_p = malloc(memory->len + 1);
  assert_non_null(*data_p);
  memcpy(*data_p, memory->data, memory->len);
  *len_p = memory->len;
  return ZPS_OK;
}

static zps_err_t memory_write(struct zps_store_backend *backend, const char *data, size_t len,
                              struct zps_error *error) {
  struct store_memory *memory = (struct store_memory *)backend;
  (void)error;
  assert_true(len <= sizeof memory->data - memory->len);
  memcpy(memory->data + memory->len, data, len);
  memory->len += len;
  memory->n_writes++;
  return ZPS_OK;
}

static zps_err_t memory_sync(struct zps_store_backend *backend, struct zps_error *error) {
  struct store_memory *memory = (struct store_memory *)backend;
  memory->n_syncs++;
  if (memory->fails) return zps_fail(error, ZPS_ERR_IO, "the disk is gone");
  memory->durable = memory->len;
  return ZPS_OK;
}

static zps_err_t memory_replace(struct zps_store_backend *backend, const char *data, size_t len,
                                struct zps_error *error) {
  struct store_memory *memory = (struct store_memory *)backend;
  (void)error;
  assert_true(len <= sizeof memory->data);
  memmove(memory->data, data, len);
  memory->len = memory->durable = len;
  memory->n_replaced++;
  return ZPS_OK;
}

static void memory_close(struct zps_store_backend *backend) {
  (void)backend;
}

static const struct zps_store_ops memory_ops = {.read = memory_read,
                                                .write = memory_write,
                                                .sync = memory_sync,
                                                .replace = memory_replace,
                                                .cut = memory_replace,
                                                .close = memory_close};

void store_memory_init(struct store_memory *memory) {
  memset(memory, 0, sizeof *memory);
  memory->backend = (struct zps_store_backend){.ops = &memory_ops, .name = "memory"};
}

void store_memory_die(struct store_memory *memory, size_t kept) {
  assert_true(memory->durable + kept <= memory->len);
  memory->len = memory->durable = memory->durable + kept;
}
