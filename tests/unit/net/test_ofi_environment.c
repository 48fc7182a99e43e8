/* What libfabric reads from the environment: port ranges, and safety of fork() on old kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/net/ofi/environment.h"
#include "common/net/ofi/impl.h"

static const char *release;

int __wrap_uname(struct utsname *name);
int __wrap_uname(struct utsname *name) {
  memset(name, 0, sizeof *name);
  strcpy(name->release, release);
  return 0;
}

static const char *const all[] = {"RDMAV_FORK_SAFE",       "IBV_FORK_SAFE",         "FI_EFA_FORK_SAFE",
                                  "RDMAV_HUGEPAGES_SAFE",  "FI_TCP_PORT_LOW_RANGE", "FI_TCP_PORT_HIGH_RANGE",
                                  "FI_NET_PORT_LOW_RANGE", "FI_NET_PORT_HIGH_RANGE"};

static int clean(void **state) {
  (void)state;
  for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) unsetenv(all[i]);
  return 0;
}

static void expect(const char *name, const char *value) {
  const char *const has = getenv(name);
  if (!value && has) fail_msg("%s is '%s'", name, has);
  if (value) assert_non_null(has);
  if (value) assert_string_equal(has, value);
}

static void set_on(const char *kernel) {
  const struct zps_net_config config = {.provider = "auto"};
  release = kernel;
  zps_ofi_environment_set(&config);
}

static void kernels_that_tear(void **state) {
  (void)state;
  assert_true(zps_ofi_fork_tears("4.18.0-553.el8.x86_64"));
  assert_true(zps_ofi_fork_tears("5.10.0-28-amd64"));
  assert_true(zps_ofi_fork_tears("5.12.19"));
  assert_false(zps_ofi_fork_tears("5.13.0"));
  assert_false(zps_ofi_fork_tears("5.14.0-427.el9.x86_64"));
  assert_false(zps_ofi_fork_tears("6.1.0-56-amd64"));
  assert_false(zps_ofi_fork_tears("10.2"));
  assert_false(zps_ofi_fork_tears("unknown"));
}

static void old_kernels_get_both(void **state) {
  (void)state;
  set_on("5.10.0-28-amd64");
  expect("RDMAV_FORK_SAFE", "1");
  expect("FI_EFA_FORK_SAFE", "1");
}

static void new_kernels_get_none(void **state) {
  (void)state;
  set_on("6.1.0-56-amd64");
  expect("RDMAV_FORK_SAFE", NULL);
  expect("FI_EFA_FORK_SAFE", NULL);
}

/* Each of them speaks for all: libibverbs and efa look at several. */
static void the_user_decides(void **state) {
  static const char *const theirs[] = {"RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "FI_EFA_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE"};
  for (unsigned i = 0; i < sizeof theirs / sizeof theirs[0]; i++) {
    clean(state);
    setenv(theirs[i], "0", 1);
    set_on("4.14.0");
    for (unsigned j = 0; j < sizeof theirs / sizeof theirs[0]; j++) expect(theirs[j], j == i ? "0" : NULL);
  }
}

static void port_ranges(void **state) {
  (void)state;
  const struct zps_net_config config = {.provider = "auto", .port_low = 7100, .port_high = 7199};
  release = "6.1.0";
  setenv("FI_NET_PORT_LOW_RANGE", "9", 1);
  zps_ofi_environment_set(&config);
  expect("FI_TCP_PORT_LOW_RANGE", "7100");
  expect("FI_TCP_PORT_HIGH_RANGE", "7199");
  expect("FI_NET_PORT_LOW_RANGE", "9");
  expect("FI_NET_PORT_HIGH_RANGE", "7199");
}

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code, (void)text;
}

/* A child that is safe lacks whole pages: nothing else of the process may lie in them. */
static void registered_buffers_have_pages_of_their_own(void **state) {
  (void)state;
  const struct zps_net_config config = {.provider = "tcp", .interface = "lo", .max_msg = 512};
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  struct zps_net *net;
  struct zps_error error;
  release = "6.1.0";
  if (zps_net_open(&config, &handler, &net, &error) != ZPS_OK) fail_msg("%s", error.text);
  struct ofi_net *const ofi = ofi_net_of(net);
  ofi->info->domain_attr->mr_mode |= FI_MR_LOCAL;
  assert_int_equal(zps_ofi_pool_grow(ofi, &ofi->sends, 3), ZPS_OK);
  const struct ofi_op *const first = STAILQ_FIRST(&ofi->sends.free);
  const struct ofi_region *const region = LIST_FIRST(&ofi->regions);
  assert_int_equal((uintptr_t)first->buffer % page, 0);
  assert_int_equal(region->len % page, 0);
  assert_true(region->len >= 3 * 512);
  zps_net_close(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(kernels_that_tear, clean),    cmocka_unit_test_setup(old_kernels_get_both, clean),
      cmocka_unit_test_setup(new_kernels_get_none, clean), cmocka_unit_test_setup(the_user_decides, clean),
      cmocka_unit_test_setup(port_ranges, clean),          cmocka_unit_test(registered_buffers_have_pages_of_their_own),
  };
  return cmocka_run_group_tests_name("environment of libfabric", tests, NULL, NULL);
}
