/* Takes arbitrary bytes for what happens to a coordinator's membership: two bytes an event, of servers and ranks that
 * come, go, are away, come back, ask, and answer what they were asked. Each request is answered once. The notes that
 * were given on the way, given back to a coordinator that has just begun, must make the same membership as the one that
 * gave them: what note_all says of both is compared. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/membership/notes.h"
#include "tests/support/settled.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/notes.h"

enum {
  SERVERS = 3,
  WORKERS = 4,
  FAKES = SERVERS + WORKERS,
  TOKENS_MAX = 1024,
  CALLS_MAX = 256,
  HELD_MAX = 64,
  LINES_MAX = 256
};

/* What a server was asked and has not answered. */
struct call {
  enum zps_action_type type;
  unsigned server;
  uint64_t job_id;
  uint32_t tensor, epoch;
};

struct fake {
  struct zps_member_client client;
  bool up, away;
  uint64_t job_id; /* of a rank: the job that it is in */
  uint32_t rank, tensor, epoch;
  struct zps_generation generation; /* of a process: the last one, even after it has left */
  uint64_t last_job;                /* the job of that generation */
  uint32_t last_rank;               /* its rank in that generation */
  uint64_t held[HELD_MAX];          /* of a server: jobs that are open here */
  unsigned n_held;
};

static struct noted noted;
static struct fake fakes[FAKES];
static struct call calls[CALLS_MAX];
static unsigned n_calls;
static unsigned tokens[TOKENS_MAX], n_tokens; /* how often each was answered */
static uint64_t now_ns, last_random;
static struct zps_journal_buffer notes;                /* so far */
static const char *const names[] = {"s0", "s1", "s2"}; /* of servers */
static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};

/* ---- what membership says ---- */

static struct fake *fake_of(const struct zps_member_client *client) {
  for (unsigned i = 0; i < FAKES; i++)
    if (&fakes[i].client == client) return &fakes[i];
  return NULL;
}

static void forget_held(struct fake *fake, uint64_t job_id) {
  for (unsigned i = 0; i < fake->n_held; i++)
    if (fake->held[i] == job_id) fake->held[i--] = fake->held[--fake->n_held];
}

static void call(const struct zps_action *action) {
  const unsigned server = (unsigned)(fake_of(action->client) - fakes);
  must(server < SERVERS && n_calls < CALLS_MAX);
  calls[n_calls++] = (struct call){.type = action->type,
                                   .server = server,
                                   .job_id = action->job->job_id,
                                   .tensor = action->tensor ? action->tensor->spec.tensor : 0,
                                   .epoch = action->job->view.epoch};
}

static void on_act(void *ctx, const struct zps_action *action) {
  struct fake *const fake = fake_of(action->client);
  (void)ctx;
  switch (action->type) {
    case ZPS_ACT_JOB_OPEN:
      must(fake && fake->n_held < HELD_MAX);
      fake->held[fake->n_held++] = action->job->job_id;
      call(action);
      break;
    case ZPS_ACT_TENSOR_OPEN:
    case ZPS_ACT_MAP_SERVER:
      call(action);
      break;
    case ZPS_ACT_JOB_CLOSE:
      must(fake != NULL);
      forget_held(fake, action->job->job_id);
      break;
    case ZPS_ACT_JOIN_DONE:
      must(fake && fake->up);
      fake->job_id = action->job->job_id;
      fake->rank = fake->client.rank;
      fake->generation = action->job->generation;
      fake->last_job = fake->job_id;
      fake->last_rank = fake->rank;
      break;
    case ZPS_ACT_TENSOR_DONE:
      must(fake != NULL);
      fake->tensor = action->tensor->spec.tensor;
      break;
    case ZPS_ACT_MAP_RANK:
      must(fake != NULL);
      fake->epoch = action->job->view.epoch;
      break;
    default:
      break;
  }
  if (action->type < ZPS_ACT_JOIN_DONE || action->type > ZPS_ACT_GROUP_FAILED) return;
  must(action->token != NULL && ++*(unsigned *)action->token == 1);
}

static uint64_t on_random(void *ctx) {
  (void)ctx;
  return ++last_random;
}

/* ---- life ---- */

static void create(struct noted *to, unsigned bits) {
  const struct zps_members_config config = {.min_servers = 1 + (bits & 1),
                                            .max_jobs = 4,
                                            .max_tensors = 3,
                                            .replays = bits & 2,
                                            .places = bits >> 2 & 3,
                                            .leave_grace_ms = 15,
                                            .ctx = to,
                                            .act = on_act,
                                            .random = on_random,
                                            .note = noted_on_note};
  must(zps_members_create(&config, &to->members) == ZPS_OK);
}

static void compare(unsigned bits) {
  struct noted again = {.to = NULL};
  create(&again, bits);
  noted_compare(&noted, &notes, &again, now_ns);
  zps_members_restored(again.members, now_ns + 1);
  for (uint64_t at = 1; at < 4; at++) zps_members_tick(again.members, now_ns + at * 40 * ZPS_NS_PER_S);
  zps_members_destroy(again.members);
}

/* ---- events ---- */

static unsigned *token(void) {
  must(n_tokens < TOKENS_MAX);
  tokens[n_tokens] = 0;
  return &tokens[n_tokens++];
}

/* It was refused at once, so nothing else answers it. */
static void refused(unsigned *its, zps_err_t err) {
  if (err != ZPS_OK) must(++*its == 1);
}

static void answer(const struct call *one, zps_err_t code) {
  const char *const text = code ? "no" : NULL;
  struct zps_member_client *const client = &fakes[one->server].client;
  switch (one->type) {
    case ZPS_ACT_JOB_OPEN:
      zps_members_job_opened(noted.members, client, one->job_id, code, text);
      break;
    case ZPS_ACT_TENSOR_OPEN:
      zps_members_tensor_opened(noted.members, client, one->job_id, one->tensor, code, text);
      break;
    default:
      zps_members_map_answered(noted.members, client, one->job_id, one->epoch, code, text);
  }
}

static struct call take_call(unsigned i) {
  const struct call one = calls[i];
  memmove(&calls[i], &calls[i + 1], (--n_calls - i) * sizeof calls[0]);
  return one;
}

static void answer_one(unsigned which, zps_err_t code) {
  if (n_calls == 0) return;
  const struct call one = take_call(which % n_calls);
  answer(&one, code);
}

/* Calls to a server end with its connection: with a word, or with none where it may come back. */
static void end_calls(unsigned server, bool silent) {
  for (unsigned i = 0; i < n_calls;) {
    if (calls[i].server != server) {
      i++;
      continue;
    }
    const struct call one = take_call(i);
    if (!silent) answer(&one, ZPS_ERR_CLOSED);
    i = 0;
  }
}

static void go_down(unsigned who) {
  struct fake *const fake = &fakes[who];
  end_calls(who, false);
  fake->up = false;
  zps_members_client_lost(noted.members, &fake->client, "gone");
  must(!fake->client.job && !fake->client.server && !fake->client.asker);
  fake->n_held = 0;
  fake->job_id = 0;
}

static void go_away(unsigned who) {
  struct fake *const fake = &fakes[who];
  end_calls(who, true);
  fake->up = false;
  fake->away = true;
  zps_members_client_away(noted.members, &fake->client, now_ns + 15 * ZPS_NS_PER_MS, "cut");
  must(!fake->client.job && !fake->client.server && !fake->client.asker);
}

static void come_server(unsigned who, bool resumes) {
  struct fake *const fake = &fakes[who];
  uint64_t jobs[HELD_MAX];
  if (!resumes) fake->n_held = 0;
  for (unsigned i = 0; i < fake->n_held; i++) { /* of what is gone meanwhile it does not hear */
    const struct zps_member_job *job = zps_members_job_first(noted.members);
    while (job && job->job_id != fake->held[i]) job = job->next;
    if (!job) forget_held(fake, fake->held[i--]);
  }
  memcpy(jobs, fake->held, sizeof jobs);
  const struct zps_server_spec spec = {.name = names[who],
                                       .host = "h",
                                       .pid = who,
                                       .fabric = &fabric,
                                       .secret = 1 + who,
                                       .jobs = jobs,
                                       .n_jobs = fake->n_held};
  fake->up = true;
  if (zps_members_server_register(noted.members, &fake->client, &spec, resumes, NULL) != ZPS_OK) go_down(who);
}

/* Bits: elastic, name, world, rank. */
static void come_worker(unsigned who, unsigned bits) {
  struct fake *const fake = &fakes[who];
  unsigned *const its = token();
  const struct zps_next_spec spec = {.join = {.job = bits & 2 ? "k" : "j",
                                              .host = "h",
                                              .world = 1 + (bits >> 2 & 3) % 3,
                                              .pid = who,
                                              .rank = bits >> 4 & 1,
                                              .timeout_ms = 30,
                                              .fabric = &fabric,
                                              .secret = 1 + who},
                                     .min_world = 1,
                                     .max_world = 1 + (bits >> 2 & 3) % 3,
                                     .wait_ms = bits >> 5,
                                     .step = bits >> 6,
                                     .generation = fake->generation.number,
                                     .last_rank = fake->last_rank,
                                     .last_job = fake->last_job};
  fake->up = true;
  refused(its, bits & 1 ? zps_members_next(noted.members, &fake->client, &spec, its, now_ns, NULL)
                        : zps_members_join(noted.members, &fake->client, &spec.join, its, now_ns, NULL));
}

static void come_back(unsigned who) {
  struct fake *const fake = &fakes[who];
  fake->away = false;
  if (who < SERVERS) {
    come_server(who, true);
    return;
  }
  const struct zps_resume_spec spec = {.job_id = fake->job_id, .secret = 1 + who, .rank = fake->rank};
  fake->up = true;
  if (zps_members_resume(noted.members, &fake->client, &spec, NULL) != ZPS_OK) fake->job_id = 0;
}

static void move(unsigned who, unsigned arg) {
  struct fake *const fake = &fakes[who];
  if (fake->away)
    come_back(who);
  else if (fake->up && arg & 128)
    go_away(who);
  else if (fake->up)
    go_down(who);
  else if (who < SERVERS)
    come_server(who, false);
  else
    come_worker(who, arg);
}

static void register_tensor(struct fake *fake, unsigned arg) {
  struct zps_tensor_spec spec = {.job_id = fake->job_id,
                                 .rows = 100 + (arg & 1),
                                 .width = 1,
                                 .dtype = ZPS_DTYPE_F32,
                                 .op = ZPS_OP_SUM,
                                 .codec = ZPS_CODEC_AUTO,
                                 .value_codec = ZPS_VALUES_RAW,
                                 .block_bits = UINT32_MAX};
  unsigned *const its = token();
  snprintf(spec.name, sizeof spec.name, "t%u", arg >> 1 & 3);
  refused(its, zps_members_tensor_register(noted.members, &fake->client, &spec, its, NULL));
}

static void say_mapped(struct fake *fake, unsigned arg) {
  uint64_t steps[] = {4, 5 + (arg & 3)};
  struct zps_tensor_steps tensor = {.tensor = fake->tensor, .n_steps = 2, .steps = steps};
  const struct zps_job_steps set = {
      .job_id = fake->job_id, .epoch = fake->epoch - (arg >> 2 & 1), .n_tensors = 1, .tensors = &tensor};
  const zps_err_t err =
      fake->epoch ? zps_settled(noted.members, zps_members_mapped(&fake->client, &set, NULL)) : ZPS_OK;
  must(err == ZPS_OK || err < 0);
}

static void ask(struct fake *fake, unsigned what, unsigned arg) {
  uint32_t all[] = {0, 1, 2};
  const struct zps_group_spec group = {
      .job_id = fake->job_id, .name = "g", .ranks = all, .n_ranks = 1 + arg % 3, .timeout_ms = 10};
  const struct zps_job_suspects suspects = {.job_id = fake->job_id, .n_servers = arg % 3, .servers = all, .why = "cut"};
  unsigned *its = NULL;
  zps_err_t err = ZPS_OK;
  switch (what) {
    case 0:
      err = arg & 1 ? zps_members_move_on(noted.members, &fake->client, fake->job_id, NULL)
                    : zps_members_leave(noted.members, &fake->client, fake->job_id, NULL);
      break;
    case 1:
      register_tensor(fake, arg);
      break;
    case 2:
      its = token();
      refused(its, zps_settled(noted.members, zps_members_tensor_close(&fake->client, fake->job_id, fake->tensor, 10,
                                                                       its, now_ns, NULL)));
      break;
    case 3:
      say_mapped(fake, arg);
      break;
    case 4:
      its = token();
      refused(its, zps_members_linked(noted.members, &fake->client, fake->job_id, 10, its, now_ns, NULL));
      break;
    case 5:
      its = token();
      refused(its, zps_members_group_open(noted.members, &fake->client, &group, its, now_ns, NULL));
      break;
    case 6:
      err = zps_members_group_close(noted.members, &fake->client, fake->job_id, "g", NULL);
      break;
    default:
      err = zps_members_suspect(&fake->client, &suspects, NULL);
  }
  must(err <= ZPS_OK);
}

static void drain(unsigned arg) {
  const struct zps_member_server *at;
  const char *const name = names[arg % SERVERS];
  const zps_err_t err = arg & 4 ? zps_members_undrain_named(noted.members, name, &at, NULL)
                                : zps_members_drain_named(noted.members, name, &at, NULL);
  must(err <= ZPS_OK);
}

/* Its process does not come back as that rank. */
static void kick(unsigned arg) {
  struct zps_member_kicked kicked;
  const uint32_t rank = arg & 1;
  const zps_err_t err = zps_members_kick(noted.members, arg & 2 ? "k" : "j", rank, "it is in the way", &kicked, NULL);
  must(err <= ZPS_OK && (err || kicked.rank == rank));
  for (unsigned i = SERVERS; !err && i < FAKES; i++) {
    const struct zps_resume_spec spec = {.job_id = kicked.job_id, .secret = 1 + i, .rank = rank};
    struct zps_member_client client = {.server = NULL};
    if (kicked.pid == i) must(zps_members_resume(noted.members, &client, &spec, NULL) < 0);
  }
}

static void pass(uint64_t ms) {
  now_ns += ms * ZPS_NS_PER_MS;
  must(zps_members_tick(noted.members, now_ns) > now_ns);
}

static void event(unsigned what, unsigned arg, unsigned bits) {
  now_ns += ZPS_NS_PER_MS;
  switch (what) {
    case 11:
      answer_one(arg, ZPS_ERR_NOMEM);
      break;
    case 12:
      if (arg & 128)
        kick(arg);
      else
        drain(arg);
      break;
    case 13:
      pass(1ull << arg % 16);
      break;
    case 14:
      compare(bits);
      break;
    case 15:
      for (unsigned n = 0; n_calls > 0 && n < CALLS_MAX; n++) answer_one(arg, ZPS_OK);
      break;
    default:
      if (what < FAKES)
        move(what, arg);
      else
        ask(&fakes[SERVERS + what - FAKES], arg >> 5, arg & 31);
  }
}

static void finish(unsigned bits) {
  compare(bits);
  for (unsigned i = FAKES; i-- > 0;) {
    if (fakes[i].away) come_back(i);
    if (fakes[i].up) go_down(i);
  }
  pass(20000);
  must(zps_members_jobs(noted.members) == 0 && zps_members_servers(noted.members) == 0);
  for (unsigned i = 0; i < n_tokens; i++) must(tokens[i] == 1);
  zps_members_destroy(noted.members);
  free(notes.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  zps_log_set_level(ZPS_LOG_ERROR);
  memset(fakes, 0, sizeof fakes);
  n_calls = n_tokens = 0;
  now_ns = last_random = 0;
  notes = (struct zps_journal_buffer){.len = 0};
  noted.to = &notes;
  create(&noted, data[0]);
  for (size_t at = 1; at + 1 < size && at < 600; at += 2) event(data[at] % 16, data[at + 1], data[0]);
  finish(data[0]);
  return 0;
}
