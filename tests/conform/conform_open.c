/* Opening an endpoint, and arguments that cannot be right. */
#include <stdlib.h>
#include <string.h>

#include "tests/conform/conform.h"

static void ignore_message(void *ctx, const void *data, size_t len) {
  (void)ctx;
  (void)data;
  (void)len;
}

static void ignore_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx;
  (void)peer;
  (void)code;
  (void)text;
}

static const struct zps_net_handler no_handler = {.on_message = ignore_message, .on_peer_error = ignore_error};

void conform_open_info(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_node node;
  conform_node_open(&node, &config);
  const struct zps_net_info *info = zps_net_info(node.net);
  assert_true(info->provider[0] && info->protocol[0] && info->addr_format[0] && info->domain[0] && info->address[0]);
  assert_in_range(info->addr_len, 1, ZPS_NET_ADDR_MAX);
  assert_int_equal(info->max_msg, CONFORM_MAX_MSG);
  assert_true(info->max_read >= 8u << 20);
  assert_int_equal(zps_net_counters(node.net)->msgs_sent, 0);
  conform_node_close(&node);
  zps_net_close(NULL);
}

static void assert_refused(struct zps_net_config config, zps_err_t expected, const char *word) {
  struct zps_net *net = NULL;
  struct zps_error error = {0};
  assert_int_equal(zps_net_open(&config, &no_handler, &net, &error), expected);
  assert_null(net);
  if (!strstr(error.text, word)) fail_msg("\"%s\" does not mention \"%s\"", error.text, word);
}

void conform_open_refusals(void **state) {
  (void)state;
  struct zps_net_config config = conform_config();
  config.max_msg = 0;
  assert_refused(config, ZPS_ERR_INVALID, "0 bytes");
  config.max_msg = ZPS_NET_MSG_MAX + 1;
  assert_refused(config, ZPS_ERR_INVALID, "16385 bytes");
  config = conform_config();
  config.port_low = 5000;
  config.port_high = 4000;
  assert_refused(config, ZPS_ERR_INVALID, "5000-4000");
  config = conform_config();
  config.provider = NULL;
  assert_refused(config, ZPS_ERR_INVALID, "provider");
  config.provider = "nothing-of-this-name";
  config.fault = NULL;
  assert_refused(config, ZPS_ERR_FABRIC, "nothing-of-this-name");
  config.provider = "net;ofi_rxm";
  assert_refused(config, ZPS_ERR_UNSUPPORTED, "net;ofi_rxm");
  config.provider = "auto";
  config.subnet = "10.0.0.0/33";
  assert_refused(config, ZPS_ERR_INVALID, "10.0.0.0/33");
  config.fault = "delay=1";
  assert_refused(config, ZPS_ERR_INVALID, "fault rules 'delay=1'");
}

static void count_line(void *ctx, const char *text) {
  assert_true(text[0]);
  ++*(unsigned *)ctx;
}

void conform_list(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  unsigned n = 0;
  zps_net_list(&config, count_line, &n);
  assert_true(n > 0);
}

/* Who knows one key must not know others. Two of 16 random ones are as near as this once in 10^9 runs. */
void conform_keys_are_random(void **state) {
  (void)state;
  enum { N = 16, NEAR = 1 << 24 };
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  static uint8_t data[N];
  struct zps_net_mem mems[N];
  conform_pair_open(&pair, &config);
  if (!zps_net_info(pair.a.net)->weak_keys) {
    for (size_t i = 0; i < N; i++) mems[i] = conform_register(&pair.a, &data[i], 1);
    for (size_t i = 0; i < N; i++)
      for (size_t k = 0; k < i; k++) {
        const uint64_t apart = mems[i].key - mems[k].key;
        assert_true(apart > NEAR && -apart > NEAR);
      }
    for (size_t i = 0; i < N; i++) zps_net_mem_release(pair.a.net, &mems[i]);
  }
  conform_pair_close(&pair);
}

void conform_bad_arguments(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  static uint8_t data[CONFORM_MAX_MSG + 1];
  conform_pair_open(&pair, &config);
  assert_int_equal(zps_net_send(pair.a_to_b, data, sizeof data), ZPS_ERR_INVALID);
  assert_int_equal(zps_net_send(pair.a_to_b, NULL, 1), ZPS_ERR_INVALID);
  struct zps_net_mem mem;
  struct zps_error error = {0};
  assert_int_equal(zps_net_mem_register(pair.a.net, NULL, 16, &mem, &error), ZPS_ERR_INVALID);
  assert_int_equal(zps_net_mem_register(pair.a.net, data, 0, &mem, &error), ZPS_ERR_INVALID);
  mem = conform_register(&pair.a, data, 1000);
  struct conform_read read = {.read = {.local = data, .mem = &mem, .len = 1000}};
  assert_int_equal(zps_net_read(pair.a_to_b, &read.read), ZPS_ERR_INVALID); /* without done */
  read.read.done = (void (*)(struct zps_net_read *, zps_err_t))abort;
  read.read.len = 0;
  assert_int_equal(zps_net_read(pair.a_to_b, &read.read), ZPS_ERR_INVALID);
  read.read.len = 1001;
  assert_int_equal(zps_net_read(pair.a_to_b, &read.read), ZPS_ERR_INVALID);
  read.read.local = data + 1;
  read.read.len = 1000;
  assert_int_equal(zps_net_read(pair.a_to_b, &read.read), ZPS_ERR_INVALID);
  read.read.mem = NULL;
  assert_int_equal(zps_net_read(pair.a_to_b, &read.read), ZPS_ERR_INVALID);
  assert_int_equal(zps_net_counters(pair.a.net)->mem_registered_bytes, 1000);
  zps_net_mem_release(pair.a.net, &mem);
  zps_net_mem_release(pair.a.net, &mem); /* zeroed by the first */
  assert_int_equal(zps_net_counters(pair.a.net)->mem_registered_bytes, 0);
  assert_ptr_equal(zps_net_peer_ctx(pair.a_to_b), &pair.a);
  assert_int_equal(zps_net_reserve(pair.a.net, -1000000), ZPS_ERR_INVALID);
  zps_net_peer_evict(NULL);
  conform_pair_close(&pair);
}

void conform_peer_bad_address(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_node node;
  static uint8_t addr[ZPS_NET_ADDR_MAX + 1];
  struct zps_net_peer *peer = NULL;
  struct zps_error error = {0};
  conform_node_open(&node, &config);
  assert_int_equal(zps_net_peer_add(node.net, addr, 0, NULL, &peer, &error), ZPS_ERR_INVALID);
  assert_int_equal(zps_net_peer_add(node.net, addr, sizeof addr, NULL, &peer, &error), ZPS_ERR_INVALID);
  assert_int_equal(zps_net_peer_add(node.net, NULL, 16, NULL, &peer, &error), ZPS_ERR_INVALID);
  const size_t wrong_len = zps_net_info(node.net)->addr_len + 3;
  assert_int_equal(zps_net_peer_add(node.net, addr, wrong_len, NULL, &peer, &error), ZPS_ERR_INVALID);
  assert_null(peer);
  conform_node_close(&node);
}
