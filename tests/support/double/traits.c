/* The three fabrics, and this process's luck. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/double/double.h"

#define FOUR_MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

/* Sources in libfabric: prov/efa/src/efa_prov_info.c, efa_user_info.c and fi_efa.7; prov/cxi/src/cxip_info.c, cxip_cq.c
 * and fi_cxi.7; prov/gni/src/gnix_fabric.c, gnix_cq.c of 1.20. efa has a descriptor from 2.5 on, and cxi another
 * threshold from 2.2 on: the environment gives these. */
static const struct double_traits known[] = {
    {.name = "efa",
     .card = "rdmap%lus6-rdm",
     .addr_format = FI_ADDR_EFA,
     .addr_len = 32,
     .key_size = 4,
     .mr_mode = FOUR_MODES,
     .rx = 4096,
     .tx = 4096,
     .eager = 8800,
     .max_len = 1ul << 40,
     .lost_errno = FI_ECONNABORTED,
     .lost_prov_errno = 13,
     .lost_text = "Unresponsive remote"},
    {.name = "cxi",
     .card = "cxi%lu",
     .addr_format = FI_ADDR_CXI,
     .addr_len = 8,
     .key_size = 8,
     .mr_mode = FI_MR_ENDPOINT | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
     .has_fd = 1,
     .rx = 512,
     .tx = 512,
     .eager = 4097,
     .max_len = UINT32_MAX,
     .lost_errno = FI_EIO,
     .lost_prov_errno = 31,
     .lost_text = "UNDELIVERABLE"},
    {.name = "gni",
     .card = "ipogif%lu",
     .addr_format = FI_ADDR_GNI,
     .addr_len = 56,
     .key_size = 8,
     .mr_mode = FOUR_MODES,
     .rx = 500,
     .tx = 500,
     .eager = 16384,
     .max_len = UINT32_MAX,
     .lost_errno = FI_EIO,
     .lost_prov_errno = 4,
     .lost_text = "GNI_RC_TRANSACTION_ERROR"},
};

struct double_traits double_is;
static unsigned chance_state;

uint64_t double_now_ns(void) {
  struct timespec now = {0, 0};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

unsigned long double_below(unsigned long bound) {
  return bound == 0 ? 0 : (unsigned long)rand_r(&chance_state) % bound;
}

bool double_chance(unsigned long n) {
  return n > 0 && double_below(1000) < n;
}

void double_log(const char *format, ...) {
  const char *const name = getenv("ZPS_DOUBLE_LOG");
  FILE *const file = name && name[0] ? fopen(name, "a") : NULL;
  char text[400];
  if (!file) return;
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(file, "%d %s %s\n", (int)getpid(), program_invocation_short_name, text);
  fclose(file);
}

static void read_number(const char *name, unsigned long *value_p) {
  char variable[64], *end = NULL;
  snprintf(variable, sizeof variable, "ZPS_DOUBLE_%s", name);
  const char *const text = getenv(variable);
  if (!text || !text[0]) return;
  const unsigned long value = strtoul(text, &end, 10);
  if (*end == '\0') {
    *value_p = value;
  } else {
    fprintf(stderr, "double: %s is '%s'; want a number\n", variable, text);
    abort();
  }
}

bool double_traits_load(void) {
  const char *const name = getenv("ZPS_DOUBLE");
  if (!name || !name[0]) return false;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (strcmp(known[i].name, name) == 0) double_is = known[i];
  if (!double_is.name) {
    fprintf(stderr, "double: ZPS_DOUBLE is '%s'; want efa, cxi or gni\n", name);
    abort();
  }
  double_is.n_cards = 1;
  read_number("RX", &double_is.rx);
  read_number("TX", &double_is.tx);
  read_number("EAGER", &double_is.eager);
  read_number("MAX_LEN", &double_is.max_len);
  read_number("FD", &double_is.has_fd);
  read_number("LATE_US", &double_is.late_us);
  read_number("JITTER_US", &double_is.jitter_us);
  read_number("AGAIN", &double_is.again);
  read_number("SILENT", &double_is.silent);
  read_number("CARDS", &double_is.n_cards);
  return true;
}
