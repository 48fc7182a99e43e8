/*
 * Planted faults of common/net/ofi are caught on a double (tests/support/double): by a rule that has the fault's name,
 * or by a test that fails. This program is common/net/ofi with the faults of plant.h. As a test it starts itself, once
 * for each fault, with one test of the suite.
 */
#undef fi_getinfo
#undef fi_mr_reg
#undef fi_mr_desc
#undef fi_mr_enable
#undef fi_close
#undef fi_tsend

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conform/conform.h"
#include "tests/support/double/plant.h"
#include "tests/support/double/use.h"

/* ---- the faults ---- */

static bool is_planted(const char *fault) {
  const char *const name = getenv("ZPS_PLANT");
  return name && strcmp(name, fault) == 0;
}

/* Offsets for addresses, and addresses for offsets. */
int planted_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                    const struct fi_info *hints, struct fi_info **list_p) {
  const int rc = fi_getinfo(version, node, service, flags, hints, list_p);
  for (struct fi_info *info = rc == 0 ? *list_p : NULL; info && is_planted("addresses"); info = info->next)
    info->domain_attr->mr_mode ^= FI_MR_VIRT_ADDR;
  return rc;
}

int planted_mr_reg(struct fid_domain *domain, const void *buf, size_t len, uint64_t access, uint64_t offset,
                   uint64_t key, uint64_t flags, struct fid_mr **mr, void *context) {
  if (is_planted("access")) access &= ~(uint64_t)FI_READ;
  return fi_mr_reg(domain, buf, len, access, offset, key, flags, mr, context);
}

void *planted_mr_desc(struct fid_mr *mr) {
  return is_planted("descriptor") ? NULL : fi_mr_desc(mr);
}

int planted_mr_enable(struct fid_mr *mr) {
  return is_planted("enable") ? 0 : fi_mr_enable(mr);
}

int planted_close(struct fid *fid) {
  return is_planted("order") && fid->fclass == FI_CLASS_MR ? 0 : fi_close(fid);
}

ssize_t planted_tsend(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag,
                      void *context) {
  const ssize_t rc = fi_tsend(ep, buf, len, desc, to, tag, context);
  if (rc == 0 && len > 0 && is_planted("touch")) *(uint8_t *)(uintptr_t)buf ^= 1;
  return rc;
}

/* ---- their tests ---- */

/* Runs one test of the suite with a fault, NULL: none. Its output goes to `text`. Returns whether it passed. */
static bool run(const char *fabric, const char *fault, const char *test, char *text, size_t size) {
  char command[400];
  size_t len = 0;
  snprintf(command, sizeof command, "ZPS_DOUBLE=%s ZPS_PLANT=%s exec /proc/%d/exe %s 2>&1", fabric,
           fault ? fault : "nothing", (int)getpid(), test);
  FILE *const output = popen(command, "r");
  assert_non_null(output);
  while (len < size - 1 && !feof(output) && !ferror(output)) len += fread(text + len, 1, size - 1 - len, output);
  text[len] = '\0';
  const int status = pclose(output);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Without the fault the test passes. With it the double ends the process with the rule's name, or (rule NULL) the test
 * fails. */
static void assert_caught(const char *fabric, const char *fault, const char *test, const char *rule) {
  static char text[16384];
  char expected[100];
  if (!run(fabric, NULL, test, text, sizeof text)) fail_msg("%s fails on %s without a fault: %s", test, fabric, text);
  if (!strstr(text, test)) fail_msg("%s did not run on %s: %s", test, fabric, text);
  if (run(fabric, fault, test, text, sizeof text)) fail_msg("%s on %s is not caught", fault, fabric);
  if (rule)
    snprintf(expected, sizeof expected, "double %s: rule %s:", fabric, rule);
  else
    snprintf(expected, sizeof expected, "not ok 1 - %s", test);
  if (!strstr(text, expected)) fail_msg("\"%s\" is not in: %s", expected, text);
}

static void no_descriptor(void **state) {
  (void)state;
  assert_caught("efa", "descriptor", "conform_message_sizes", "descriptor");
}

static void no_access_for_reads(void **state) {
  (void)state;
  assert_caught("gni", "access", "conform_read_sizes", "descriptor-access");
}

static void a_send_buffer_is_touched(void **state) {
  (void)state;
  assert_caught("efa", "touch", "conform_message_sizes", "send-buffer");
}

static void the_endpoint_is_closed_first(void **state) {
  (void)state;
  assert_caught("cxi", "order", "conform_close_outstanding", "endpoint-first");
}

static void a_registration_is_not_enabled(void **state) {
  (void)state;
  assert_caught("cxi", "enable", "conform_read_sizes", NULL);
}

static void an_address_for_an_offset(void **state) {
  (void)state;
  assert_caught("cxi", "addresses", "conform_read_sizes", NULL);
}

static void an_offset_for_an_address(void **state) {
  (void)state;
  assert_caught("efa", "addresses", "conform_read_sizes", NULL);
}

int main(int argc, char **argv) {
  static struct conform_target target = {.answers_reads = true, .must_be_there = true};
  target.provider = getenv("ZPS_DOUBLE");
  if (getenv("ZPS_PLANT") && target.provider) {
    double_use(target.provider);
    return conform_main(argc, argv, &target);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_descriptor),
      cmocka_unit_test(no_access_for_reads),
      cmocka_unit_test(a_send_buffer_is_touched),
      cmocka_unit_test(the_endpoint_is_closed_first),
      cmocka_unit_test(a_registration_is_not_enabled),
      cmocka_unit_test(an_address_for_an_offset),
      cmocka_unit_test(an_offset_for_an_address),
  };
  return cmocka_run_group_tests_name("planted faults", tests, NULL, NULL);
}
