/* Fabrics that pin memory, where little may be locked; and cards with short queues. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/net/ofi/impl.h"
#include "common/net/ofi/memlock.h"
#include "tests/support/locked.h"

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code, (void)text;
}

static void providers_that_pin_need_a_limit_as_large(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(zps_memlock_judge("net", 0, false, 1 << 30, &error), ZPS_OK);
  assert_int_equal(zps_memlock_judge("verbs;ofi_rxm", UINT64_MAX, false, 1 << 30, &error), ZPS_OK);
  assert_int_equal(zps_memlock_judge("efa", 8 << 20, true, 1 << 30, &error), ZPS_OK);
  assert_int_equal(zps_memlock_judge("efa", 1 << 30, false, 1 << 30, &error), ZPS_OK);
  assert_int_equal(zps_memlock_judge("cxi", 8 << 20, false, 1 << 30, &error), ZPS_ERR_REFUSED);
  assert_non_null(strstr(error.text, "up to 1024 MiB"));
  assert_non_null(strstr(error.text, "only 8192 KiB"));
  assert_non_null(strstr(error.text, "ulimit -l unlimited"));
}

static zps_err_t open_with(const char *provider, struct zps_error *error) {
  const struct zps_net_config config = {
      .provider = provider, .interface = "lo", .max_msg = 512, .memory_limit_bytes = 1 << 30};
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_net *net = NULL;
  const zps_err_t code = zps_net_open(&config, &handler, &net, error);
  if (code == ZPS_OK) zps_net_close(net);
  return code;
}

/* Before libfabric is asked, which may not list the provider at all then. */
static void an_endpoint_is_refused(void **state) {
  (void)state;
  struct locked locked;
  struct zps_error error = {.text = ""};
  locked_begin(&locked, 64 << 10);
  assert_int_equal(open_with("verbs;ofi_rxm", &error), ZPS_ERR_REFUSED);
  assert_non_null(strstr(error.text, "verbs;ofi_rxm pins memory"));
  assert_non_null(strstr(error.text, "only 64 KiB"));
  assert_int_equal(open_with("fault+efa", &error), ZPS_ERR_REFUSED);
  if (open_with("tcp", &error) != ZPS_OK) fail_msg("%s", error.text);
  locked_end(&locked);
}

static void a_failed_registration_names_the_limit(void **state) {
  (void)state;
  struct locked locked;
  struct zps_error error;
  struct fi_info *info = fi_allocinfo();
  info->fabric_attr->prov_name = strdup("efa");
  locked_begin(&locked, 64 << 10);
  assert_int_equal(zps_ofi_fail(&error, -FI_ENOMEM, "fi_mr_reg", info), ZPS_ERR_NOMEM);
  assert_non_null(strstr(error.text, "fi_mr_reg on efa"));
  assert_non_null(strstr(error.text, "may lock 64 KiB of memory: raise ulimit -l"));
  assert_int_equal(zps_ofi_fail(&error, -FI_EINVAL, "fi_mr_reg", info), ZPS_ERR_FABRIC);
  assert_null(strstr(error.text, "ulimit"));
  strcpy(info->fabric_attr->prov_name, "tcp");
  assert_int_equal(zps_ofi_fail(&error, -FI_ENOMEM, "fi_mr_reg", info), ZPS_ERR_NOMEM);
  assert_null(strstr(error.text, "ulimit"));
  locked_end(&locked);
  fi_freeinfo(info);
}

/* The default asks rdma_rxe for more entries than it has. */
static void a_short_completion_queue_names_its_variable(void **state) {
  (void)state;
  struct zps_error error;
  struct fi_info *info = fi_allocinfo();
  info->fabric_attr->prov_name = strdup("verbs;ofi_rxm");
  assert_int_equal(zps_ofi_fail(&error, -FI_EINVAL, "fi_enable", info), ZPS_ERR_FABRIC);
  assert_non_null(strstr(error.text, "Invalid argument: the card may have no completion queue"));
  assert_non_null(strstr(error.text, "FI_UNIVERSE_SIZE"));
  assert_int_equal(zps_ofi_fail(&error, -FI_EINVAL, "fi_endpoint", info), ZPS_ERR_FABRIC);
  assert_null(strstr(error.text, "FI_UNIVERSE_SIZE"));
  strcpy(info->fabric_attr->prov_name, "tcp;ofi_rxm");
  assert_int_equal(zps_ofi_fail(&error, -FI_EINVAL, "fi_enable", info), ZPS_ERR_FABRIC);
  assert_null(strstr(error.text, "FI_UNIVERSE_SIZE"));
  fi_freeinfo(info);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(providers_that_pin_need_a_limit_as_large),
      cmocka_unit_test(an_endpoint_is_refused),
      cmocka_unit_test(a_failed_registration_names_the_limit),
      cmocka_unit_test(a_short_completion_queue_names_its_variable),
  };
  return cmocka_run_group_tests_name("locked memory", tests, NULL, NULL);
}
