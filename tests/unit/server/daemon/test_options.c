/* zenpsd's options as a whole, and the check of the limit on locked memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/machine.h"
#include "common/base/text.h"
#include "common/control/rpc.h"
#include "proto/control.h"
#include "server/daemon/options.h"
#include "server/state/etcd.h"
#include "tests/unit/tls/tls_rig.h"

static zps_err_t load(struct zps_options *options, struct zps_error *error, unsigned n, const char *const *flags) {
  char *argv[8] = {(char *)"zenpsd"};
  struct zps_config_rest rest;
  for (unsigned i = 0; i < n; i++) argv[i + 1] = (char *)flags[i];
  const zps_err_t err = zps_config_load(&zps_options_table, (int)n + 1, argv, NULL, options, &rest, error);
  return err ? err : zps_options_complete(options, error);
}

static void refused(const char *text, unsigned n, const char *const *flags) {
  struct zps_options options;
  struct zps_error error = {.text = ""};
  assert_int_not_equal(load(&options, &error, n, flags), ZPS_OK);
  if (!strstr(error.text, text)) fail_msg("'%s' is not in: %s", text, error.text);
  zps_config_fini(&zps_options_table, &options);
}
#define REFUSED(text, ...) \
  refused(text, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__})

static void test_defaults(void **state) {
  (void)state;
  struct zps_options options;
  struct zps_error error = {.text = ""};
  assert_int_equal(load(&options, &error, 0, NULL), ZPS_OK);
  assert_true(zps_options_is_server(&options) && zps_options_is_coordinator(&options));
  assert_string_equal(options.control_listen, "127.0.0.1:7077");
  assert_string_equal(options.fabric_provider, "auto");
  assert_true(options.control_heartbeat_ms == 1000 && options.control_dead_ms == 5000);
  assert_true(options.server_memory_limit_bytes > 1 << 20);
  assert_int_equal(options.server_memory_limit_bytes, zps_machine_memory_bytes() / 2);
  assert_in_range(options.server_reduce_threads, 1, 8);
  assert_true(strlen(options.server_name) > 0 && strcmp(options.server_name, options.server_host) == 0);
  assert_true(options.server_read_budget_bytes == 64 << 20 && options.coordinator_min_servers == 1);
  assert_true(options.socket_mode == 0600 && options.socket_group == ZPS_RPC_ANY_GROUP);
  assert_int_equal(options.server_index, 0);
  zps_config_fini(&zps_options_table, &options);
  setenv("SLURM_LOCALID", "3", 1);
  assert_int_equal(load(&options, &error, 0, NULL), ZPS_OK);
  assert_int_equal(options.server_index, 3);
  zps_config_fini(&zps_options_table, &options);
  const char *const numbers[] = {"--server-index=1"};
  assert_int_equal(load(&options, &error, 1, numbers), ZPS_OK);
  assert_int_equal(options.server_index, 1);
  unsetenv("SLURM_LOCALID");
  zps_config_fini(&zps_options_table, &options);
  const char *const shared[] = {"--control-socket-mode=660", "--control-socket-group=root"};
  assert_int_equal(load(&options, &error, 2, shared), ZPS_OK);
  assert_true(options.socket_mode == 0660 && options.socket_group == 0);
  zps_config_fini(&zps_options_table, &options);
  const char *const numbered[] = {"--control-socket-mode=0007", "--control-socket-group=54321"};
  assert_int_equal(load(&options, &error, 2, numbered), ZPS_OK);
  assert_true(options.socket_mode == 7 && options.socket_group == 54321);
  zps_config_fini(&zps_options_table, &options);
}

static void test_profile(void **state) {
  (void)state;
  struct zps_options options;
  struct zps_error error = {.text = ""};
  char text[ZPS_PROFILE_TEXT_SIZE];
  const char *const flags[] = {"--profile=internet", "--roles=coordinator", "--control-dead=40s"};
  assert_int_equal(load(&options, &error, 3, flags), ZPS_OK);
  assert_true(options.control_heartbeat_ms == 5000 && options.control_dead_ms == 40000 && options.fabric_encrypt);
  assert_true(zps_config_profile_text(&zps_options_table, &options, text, sizeof text));
  assert_string_equal(
      text,
      "profile internet: control.heartbeat = 5s, control.dead as --control-dead says, "
      "control.resume_grace = 30s, coordinator.restart_grace = 2m, fabric.encrypt = yes, fabric.bbr = yes, "
      "fabric.keepalive = 10s");
  zps_config_fini(&zps_options_table, &options);
  REFUSED("fabric.encrypt (profile internet) yes: encrypted gradients need certificates", "--profile=internet");
  REFUSED("fabric.encrypt (profile internet) is set, and provider \"net\" does not encrypt: set the provider to",
          "--profile=internet", "--fabric-provider=net");
  REFUSED("--fabric-encrypt is set, and provider \"net\" does not", "--fabric-encrypt", "--fabric-provider=fault+net");
  const char *const alone[] = {"--profile=internet", "--fabric-provider=net", "--roles=coordinator"};
  assert_int_equal(load(&options, &error, 3, alone), ZPS_OK);
  zps_config_fini(&zps_options_table, &options);
  REFUSED("--profile is 'lan': must be one of none, internet", "--profile=lan");
}

#define ETCD "--roles=coordinator", "--coordinator-store=etcd"
#define AT "--coordinator-etcd=http://e:2379"

/* In builds that can reach it. */
static void test_etcd(void) {
  struct zps_options options;
  struct zps_error error;
  REFUSED("--coordinator-etcd-cert and coordinator.etcd_key go together", ETCD, AT, "--coordinator-etcd-cert=/c");
  REFUSED("--coordinator-etcd-prefix is '/z/': must be 1 to 128 printable bytes, the last one no slash", ETCD, AT,
          "--coordinator-etcd-prefix=/z/");
  REFUSED("--coordinator-etcd-prefix is ''", ETCD, AT, "--coordinator-etcd-prefix=");
  REFUSED("--coordinator-advertise: address 'h': no port", ETCD, AT, "--coordinator-advertise=h");
  const char *const good[] = {ETCD, AT, "--coordinator-advertise=h:1"};
  assert_int_equal(load(&options, &error, 4, good), ZPS_OK);
  assert_true(zps_options_is_candidate(&options));
  assert_string_equal(options.coordinator_etcd_prefix, "/zenps");
  zps_config_fini(&zps_options_table, &options);
}

static void test_combinations(void **state) {
  (void)state;
  char name[ZPS_NAME_MAX + 32] = "--server-name=";
  memset(name + strlen(name), 'x', ZPS_NAME_MAX + 1);
  REFUSED("--roles = server needs control.coordinator = HOST:PORT", "--roles=server");
  REFUSED("--control-coordinator (h:1) is for roles = server; with roles = server,coordinator",
          "--control-coordinator=h:1");
  REFUSED("--control-coordinator: address 'nonsense'", "--roles=server", "--control-coordinator=nonsense");
  REFUSED("--control-coordinator: address 2 of the list: address 'b': no port", "--roles=server",
          "--control-coordinator=a:1,b");
  REFUSED("--control-listen: address 'nonsense'", "--control-listen=nonsense");
  REFUSED("--control-listen (0.0.0.0:7077) is reached by other hosts, and without TLS anybody",
          "--control-listen=0.0.0.0:7077");
  REFUSED("control.insecure = yes where the network keeps strangers out", "--control-listen=node7:0");
  REFUSED("the file of the certificate is not named", "--control-listen=0.0.0.0:7077", "--tls-ca=/ca",
          "--tls-key=/key");
  struct zps_options options;
  struct zps_error error;
  const char *const open[] = {"--control-listen=0.0.0.0:7077", "--control-insecure"};
  assert_int_equal(load(&options, &error, 2, open), ZPS_OK);
  assert_true(zps_options_is_open(&options));
  zps_config_fini(&zps_options_table, &options);
  const char *const server[] = {"--roles=server", "--control-coordinator=node7:1"};
  assert_int_equal(load(&options, &error, 2, server), ZPS_OK);
  assert_false(zps_options_is_open(&options));
  zps_config_fini(&zps_options_table, &options);
  REFUSED("--coordinator-store = etcd is for roles = coordinator, not for roles = server,coordinator",
          "--coordinator-store=etcd", AT);
  REFUSED("--coordinator-store = etcd needs coordinator.etcd = http://HOST:PORT", ETCD);
  REFUSED("--coordinator-state-dir (/s) is for coordinator.store = file: with --coordinator-store = etcd", ETCD, AT,
          "--coordinator-state-dir=/s");
  REFUSED("--coordinator-etcd: URL 2 of etcd is 'b:1': must be http://HOST:PORT", ETCD,
          "--coordinator-etcd=http://a:1,b:1");
  REFUSED("--coordinator-etcd (http://e:2379) is for coordinator.store = etcd", AT);
  REFUSED("--coordinator-advertise (h:1) is for coordinator.store = etcd", "--coordinator-advertise=h:1");
  REFUSED("--control-heartbeat is 3000 ms and control.dead 5000 ms: death takes at least two heartbeats",
          "--control-heartbeat=3s");
  REFUSED("from 10 to 3600000 ms", "--control-heartbeat=5ms");
  REFUSED("from 10 to 3600000 ms", "--control-heartbeat=2h", "--control-dead=10h");
  REFUSED("from 0 to 3600000 ms", "--control-dead=2h");
  REFUSED("--leave-grace is set: there is no option leave.grace any more, it is 6 times control.dead; leave it out",
          "--leave-grace=30s");
  REFUSED("no option coordinator.lease any more", ETCD, AT, "--coordinator-lease=7s");
  REFUSED("of at least 1048576", "--server-read-budget=1");
  REFUSED("--fabric-port-low (2000) is above --fabric-port-high (1000)", "--fabric-port-low=2000",
          "--fabric-port-high=1000");
  REFUSED("1 to 128 printable bytes", name);
  REFUSED("--server-name is '' and server.host '", "--server-name=");
  REFUSED("and --server-host 'a?b'", "--server-host=a\tb");
  REFUSED("roles", "--roles=king");
  static const char *const modes[] = {"--control-socket-mode=",     "--control-socket-mode=66",
                                      "--control-socket-mode=1777", "--control-socket-mode=00660",
                                      "--control-socket-mode=0680", "--control-socket-mode=-660",
                                      "--control-socket-mode=rw-"};
  for (unsigned i = 0; i < sizeof modes / sizeof modes[0]; i++)
    REFUSED("must be an octal file mode from 0000 to 0777, such as 0600", modes[i]);
  REFUSED("--control-socket-group is 'no such group', and this host has no such group",
          "--control-socket-group=no such group");
  REFUSED("--control-socket-group is ''", "--control-socket-group=");
  REFUSED("--control-socket-group is '9999999999'", "--control-socket-group=9999999999");
  if (zps_etcd_http_check("http://e:2379", NULL) == ZPS_OK) test_etcd();
  const char *const good[] = {"--roles=server", "--control-coordinator=[::1]:7077", "--server-memory-limit=3G"};
  assert_int_equal(load(&options, &error, 3, good), ZPS_OK);
  assert_true(options.server_memory_limit_bytes == 3ull << 30 && !zps_options_is_coordinator(&options));
  zps_config_fini(&zps_options_table, &options);
}

/* `text` has the file's path in the place of each FILE. */
static void refused_in_file(const char *text, const char *content, const char *flag) {
  char path[] = "/tmp/zps-options-XXXXXX", config[64], said[300] = "";
  const int fd = mkstemp(path);
  assert_true(fd >= 0 && dprintf(fd, "%s", content) > 0);
  close(fd);
  for (const char *at; (at = strstr(text, "FILE")) != NULL; text = at + 4)
    zps_text_add(said, sizeof said, "%.*s%s", (int)(at - text), text, path);
  zps_text_add(said, sizeof said, "%s", text);
  snprintf(config, sizeof config, "--config=%s", path);
  REFUSED(said, config, flag);
  unlink(path);
}

/* Cross-checks, by the source of the options that they name. */
static void test_names_by_source(void **state) {
  (void)state;
  refused_in_file("control.heartbeat (FILE:2) is 3000 ms and control.dead 5000 ms", "[control]\nheartbeat = 3s\n",
                  "--log-level=info");
  refused_in_file("control.heartbeat (FILE:3) is 3000 ms and --control-dead 5900 ms", "\n[control]\nheartbeat = 3s\n",
                  "--control-dead=5.9s");
  refused_in_file("tls.ca (FILE:2), --tls-cert and tls.key (FILE:3): ", "[tls]\nca = /none\nkey = /none\n",
                  "--tls-cert=/none");
  refused_in_file("job.weights (FILE:2): the weight in 'a:0'", "[job]\nweights = a:0\n", "--log-level=info");
  refused_in_file("fabric.port_high (FILE:2) 70: set both, or none for any port", "[fabric]\nport_high = 70\n",
                  "--log-level=info");
  refused_in_file("fabric.subnet (FILE:2): ", "[fabric]\nsubnet = 10.0.0.300/8\n", "--log-level=info");
  static const struct {
    const char *variable, *value, *text;
  } cases[] = {
      {"ZENPS_CONTROL_HEARTBEAT", "3s", "ZENPS_CONTROL_HEARTBEAT is 3000 ms and control.dead 5000 ms"},
      {"ZENPS_CONTROL_LISTEN", "nonsense", "ZENPS_CONTROL_LISTEN: address 'nonsense'"},
      {"ZENPS_CONTROL_SOCKET_MODE", "9", "ZENPS_CONTROL_SOCKET_MODE is '9'"},
      {"ZENPS_SERVER_NAME", "a\tb", "ZENPS_SERVER_NAME is 'a?b' and server.host '"},
      {"ZENPS_FABRIC_PORT_LOW", "70", "ZENPS_FABRIC_PORT_LOW (70) is above --fabric-port-high (69)"},
      {"ZENPS_JOB_WEIGHTS", "a", "ZENPS_JOB_WEIGHTS: 'a' is no PATTERN:WEIGHT"},
      {"ZENPS_ROLES", "server", "ZENPS_ROLES = server needs control.coordinator"},
      {"ZENPS_COORDINATOR_ETCD", "http://e:1", "ZENPS_COORDINATOR_ETCD (http://e:1) is for coordinator.store = etcd"},
      {"ZENPS_COORDINATOR_TOKEN_KEY", "/none", "ZENPS_COORDINATOR_TOKEN_KEY: "},
      {"ZENPS_FABRIC_AUTH_KEY", "/none", "ZENPS_FABRIC_AUTH_KEY /none: cannot be opened"},
      {"ZENPS_TLS_CA", "/none", "ZENPS_TLS_CA, tls.cert and tls.key: "},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(setenv(cases[i].variable, cases[i].value, 1), 0);
    REFUSED(cases[i].text, "--fabric-port-high=69");
    unsetenv(cases[i].variable);
  }
}

/* The certificate is to be that of the server which the process is; the host's name is its default. */
static void test_certificate(void **state) {
  (void)state;
  struct rig rig;
  rig_open(&rig);
  rig_cert(&rig, "node1", ZPS_TLS_SERVER, 0, RIG_DAY_S);
  rig_cert(&rig, "node-*", ZPS_TLS_SERVER, 0, RIG_DAY_S);
  rig_cert(&rig, "c", ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER, 0, RIG_DAY_S);
  static const struct {
    const char *of, *roles, *name, *refused;
  } cases[] = {
      {"node1", "server", "node1", NULL},
      {"node1", "server", "node2",
       "node1.pem) is for servers of the name node1, and --server-name is 'node2' (by default the host's name)"},
      {"node1", "server", NULL, "a certificate of its own (zenpsctl certs init DIR --servers=NAME), or a server.name"},
      {"node-*", "server", "node-7", NULL},
      {"node-*", "server", "node7", "is for servers of the name node-*, and --server-name is 'node7'"},
      {"c", "server,coordinator", "node2", NULL},
      {"c", "coordinator", NULL, NULL},
  };
  char path[160], flags[6][200];
  const char *args[6];
  for (unsigned i = 0; i < 6; i++) args[i] = flags[i];
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    unsigned n = 0;
    snprintf(flags[n++], 200, "--tls-ca=%s", rig_path(&rig, "ca", ".pem", path));
    snprintf(flags[n++], 200, "--tls-cert=%s", rig_path(&rig, cases[i].of, ".pem", path));
    snprintf(flags[n++], 200, "--tls-key=%s", rig_path(&rig, cases[i].of, ".key", path));
    snprintf(flags[n++], 200, "--roles=%s", cases[i].roles);
    if (strcmp(cases[i].roles, "server") == 0) snprintf(flags[n++], 200, "--control-coordinator=h:1");
    if (cases[i].name) snprintf(flags[n++], 200, "--server-name=%s", cases[i].name);
    if (cases[i].refused) {
      refused(cases[i].refused, n, args);
      continue;
    }
    struct zps_options options;
    struct zps_error error = {.text = ""};
    if (load(&options, &error, n, args)) fail_msg("%s", error.text);
    zps_config_fini(&zps_options_table, &options);
  }
  rig_close(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),        cmocka_unit_test(test_profile),     cmocka_unit_test(test_combinations),
      cmocka_unit_test(test_names_by_source), cmocka_unit_test(test_certificate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
