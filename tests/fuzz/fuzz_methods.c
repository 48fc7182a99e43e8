/* Takes arbitrary bytes for what clients say to a coordinator, whose listener, connections, methods and membership are
 * the real ones, over sockets of memory: bytes for an event, of clients of each role that connect, end, ask, answer,
 * are silent, and send lines that are none. Each call is answered, once and in time (methods_clients.h); what was noted
 * on the way makes the same membership again; when all are gone, nothing is left of them. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/secret.h"
#include "server/coordinator/coordinator_impl.h"
#include "tests/fuzz/methods_clients.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/notes.h"
#include "tests/fuzz/one_loop.h"

enum { EVENTS_MAX = 160, BEAT_MS = 2000, DEAD_MS = 5000, LEAVE_MS = 10000, SETTLE_MS = 20000, GONE_MS = 25000 };

enum stage { AT_EVENTS, AT_SETTLING, AT_ENDING, AT_CLOSING, AT_END };

static const struct zps_token_keys keys = {.n = 2, .key = {{1}, {2}}}, foreign_keys = {.n = 1, .key = {{3}}};

static uv_loop_t loop;
static uv_timer_t last; /* closed when all is over: the loop goes on until then */
static struct zps_coordinator *coordinator;
static struct noted noted;
static struct zps_journal_buffer notes; /* so far */
static uint64_t last_random;

static struct {
  const uint8_t *data;
  size_t size, at;
  unsigned bits, n_events;
  enum stage stage;
  uint64_t beat_to_ns; /* clients say that they live until then */
} input;

/* ---- in place of the product's ---- */

zps_err_t __wrap_zps_secret_make(uint64_t *secret_p);
void __wrap_zps_coordinator_check_descriptors(void);
void __wrap_zps_coordinator_note(void *ctx, const struct zps_member_note *note);

zps_err_t __wrap_zps_secret_make(uint64_t *secret_p) {
  *secret_p = ++last_random;
  return ZPS_OK;
}

/* Of this process, and costly. */
void __wrap_zps_coordinator_check_descriptors(void) {}

/* As if it kept a state. */
void __wrap_zps_coordinator_note(void *ctx, const struct zps_member_note *note) {
  (void)ctx;
  noted_on_note(&noted, note);
}

/* ---- notes ---- */

static void act_not(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static uint64_t on_random(void *ctx) {
  (void)ctx;
  return ++last_random;
}

static void compare(void) {
  struct noted again = {.to = NULL};
  const struct zps_members_config config = {.min_servers = 1,
                                            .max_jobs = ZPS_JOBS_MAX,
                                            .max_tensors = ZPS_TENSORS_MAX,
                                            .replays = input.bits & 1,
                                            .leave_grace_ms = LEAVE_MS,
                                            .ctx = &again,
                                            .act = act_not,
                                            .random = on_random,
                                            .note = noted_on_note};
  must(zps_members_create(&config, &again.members) == ZPS_OK);
  noted_compare(&noted, &notes, &again, one_loop_now_ns);
  zps_members_destroy(again.members);
}

/* ---- events ---- */

static unsigned byte(void) {
  return input.at < input.size ? input.data[input.at++] : 0;
}

static void pass(uint64_t ms) {
  one_loop_until_ns = one_loop_now_ns + ms * ZPS_NS_PER_MS;
}

static void pass_beating(uint64_t ms) {
  input.beat_to_ns = one_loop_now_ns + ms * ZPS_NS_PER_MS;
}

/* Three clients are servers, three ranks, two administrators, or what they please. */
static unsigned role_of(unsigned who, unsigned bits) {
  if (bits & 1) return 1u << (bits >> 1) % 3;
  return who < 3 ? OF_SERVERS : who < 6 ? OF_RANKS : OF_ADMINS;
}

static void come(unsigned who) {
  const unsigned bits = byte();
  client_connect(who, role_of(who, bits >> 4), bits % 16 < 5 ? bits % 16 : 0);
  client_answers_all(who, bits & 128);
}

static void say(unsigned who, const struct methods_method *method) {
  const unsigned bits = byte(), more = byte();
  struct client_say one = {.method = method,
                           .variant = bits,
                           .job = bits >> 5 & 1,
                           .is_next = bits & 64,
                           .world = 1 + more % 3,
                           .rank = more >> 2 & 3,
                           .token = more >> 4 & 1 ? 1 + (bits >> 5 & 1) : more >> 5,
                           .of = bits & 128 ? byte() : who,
                           .calls = !method->notifies};
  if ((more & 0xe0) == 0xe0) { /* some in a way that is not theirs */
    const unsigned n = byte();
    one.calls ^= n & 1;
    one.n_changes = n >> 1 & 3;
    for (unsigned i = 0; i < one.n_changes; i++) one.changes[i] = (struct client_change){byte(), byte()};
  }
  client_say(who, &one);
}

static void send_raw(unsigned who) {
  const size_t n = byte(), left = input.size - input.at, len = n / 2 < left ? n / 2 : left;
  client_send(who, input.data + input.at, len, n & 1);
  input.at += len;
}

/* What its role has, for most clients. */
static unsigned number_of(unsigned n, unsigned who) {
  static const unsigned of_servers[] = {0, 17, 18, 19};
  return who < 3 ? of_servers[n % 4] : who < 6 ? 1 + n : 20 + n;
}

static void go_on(unsigned arg) {
  if (arg & 128)
    pass_beating(1ull << arg % 16);
  else
    pass(1ull << arg % 17);
}

static void event(unsigned what, unsigned who) {
  switch (what) {
    case 0:
      client_end(who);
      break;
    case 1:
      send_raw(who);
      break;
    case 2:
      go_on(byte());
      break;
    case 3:
      client_answer(who, 0, byte());
      break;
    case 4:
      client_answer(who, byte(), 0);
      break;
    case 5:
      compare();
      break;
    default:
      if (!client_is_up(who))
        come(who);
      else
        say(who, methods_method(what < 20 ? number_of(what - 6, who) : byte()));
  }
}

/* ---- the end ---- */

static void settle(void) {
  for (unsigned i = 0; i < CLIENTS; i++) client_answers_all(i, true);
  pass_beating(SETTLE_MS);
  input.stage = AT_SETTLING;
}

static void end_all(void) {
  clients_check_all();
  for (unsigned i = 0; i < CLIENTS; i++) client_end(i);
  pass(GONE_MS);
  input.stage = AT_ENDING;
}

static void close_all(void) {
  compare();
  must(clients_are_gone() && coordinator->n_conns == 0);
  must(zps_members_jobs(coordinator->members) == 0 && zps_members_servers(coordinator->members) == 0);
  noted.to = NULL;
  zps_coordinator_close(coordinator);
  pass(2000);
  input.stage = AT_CLOSING;
}

/* Called when all has happened that was to. */
static void next(void *ctx) {
  (void)ctx;
  clients_check();
  if (one_loop_now_ns < input.beat_to_ns) {
    for (unsigned i = 0; i < CLIENTS; i++) client_beat(i);
    pass(BEAT_MS);
    return;
  }
  switch (input.stage) {
    case AT_EVENTS:
      if (input.at >= input.size || input.n_events++ == EVENTS_MAX) {
        settle();
        return;
      }
      pass(1);
      const unsigned first = byte();
      event(first >> 3, first % CLIENTS);
      break;
    case AT_SETTLING:
      end_all();
      break;
    case AT_ENDING:
      close_all();
      break;
    case AT_CLOSING:
      uv_close((uv_handle_t *)&last, NULL);
      input.stage = AT_END;
      break;
    default:
      must(!"the loop goes on");
  }
}

static void create(void) {
  static char tokens[4][ZPS_TOKEN_SIZE];
  const struct zps_coordinator_config config = {.listen = "127.0.0.1:7000",
                                                .heartbeat_ms = BEAT_MS,
                                                .dead_ms = DEAD_MS,
                                                .call_timeout_ms = 10000,
                                                .leave_grace_ms = LEAVE_MS,
                                                .resume_grace_ms = input.bits & 2 ? 2000 : 0,
                                                .min_servers = 1,
                                                .token_keys = input.bits & 4 ? &keys : NULL,
                                                .server_loss_replays = input.bits & 1};
  struct zps_error error;
  must(zps_coordinator_create(&loop, &config, &coordinator, &error) == ZPS_OK);
  noted.members = coordinator->members;
  noted.to = &notes;
  must(zps_token_make(&keys, "train", 0, tokens[0], NULL) == ZPS_OK &&
       zps_token_make(&keys, "k", 0, tokens[1], NULL) == ZPS_OK);
  must(zps_token_make(&foreign_keys, "train", 0, tokens[2], NULL) == ZPS_OK);
  must(zps_token_make(&keys, "train", 1000, tokens[3], NULL) == ZPS_OK);
  clients_begin(&(struct client_config){.loop = &loop,
                                        .address = zps_coordinator_address(coordinator),
                                        .asks_for_tokens = input.bits & 4,
                                        .tokens = {tokens[0], tokens[1], tokens[2], tokens[3]}});
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  zps_log_set_level(ZPS_LOG_ERROR);
  memset(&input, 0, sizeof input);
  input.data = data;
  input.size = size;
  input.bits = byte();
  last_random = 0;
  notes = (struct zps_journal_buffer){.len = 0};
  one_loop_begin(1 + input.bits, next, NULL);
  must(uv_loop_init(&loop) == 0 && uv_timer_init(&loop, &last) == 0);
  create();
  must(uv_run(&loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&loop) == 0);
  free(notes.data);
  return 0;
}
