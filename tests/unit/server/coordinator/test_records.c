/*
 * Membership through its notes: after random events, the membership that is made again from the journal says the same
 * of itself as the first one, which goes on, and so does one that is made again from what that one says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "server/coordinator/records.h"
#include "tests/support/settled.h"
#include "tests/support/thin.h"

enum { SERVERS = 3, RANKS = 3, LINES_MAX = 8192 };

struct lines {
  char *text[LINES_MAX];
  unsigned n;
};

static struct world {
  struct zps_members *members;
  struct zps_member_client servers[SERVERS], ranks[RANKS];
  struct zps_rng rng;
  struct lines journal;
  struct lines *to; /* where notes go */
  uint64_t now_ns, random;
  struct {
    enum zps_action_type type;
    unsigned server;
    uint64_t job_id;
    uint32_t tensor, epoch;
  } calls[256];
  unsigned n_calls;
  bool replays;
  bool takes_in; /* time passes, in which servers take free places */
} world;

static void on_note(void *ctx, const struct zps_member_note *note) {
  struct lines *to = ((struct world *)ctx)->to;
  zps_json *record = zps_record_write(note);
  assert_true(record && to->n < LINES_MAX);
  to->text[to->n++] = zps_json_dump(record);
  zps_json_unref(record);
}

static void on_act(void *ctx, const struct zps_action *action) {
  (void)ctx;
  if (action->type != ZPS_ACT_JOB_OPEN && action->type != ZPS_ACT_TENSOR_OPEN && action->type != ZPS_ACT_MAP_SERVER)
    return;
  assert_true(world.n_calls < 256);
  world.calls[world.n_calls].server = (unsigned)(action->client - world.servers);
  world.calls[world.n_calls].job_id = action->job->job_id;
  world.calls[world.n_calls].type = action->type;
  world.calls[world.n_calls].epoch = action->job->view.epoch;
  world.calls[world.n_calls++].tensor = action->tensor ? action->tensor->spec.tensor : 0;
}

static void no_act(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static uint64_t on_random(void *ctx) {
  return zps_rng_u64(&((struct world *)ctx)->rng);
}

static void clear(struct lines *lines) {
  while (lines->n) free(lines->text[--lines->n]);
}

static int compare(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* What it says of itself, in an order of its own. */
static void describe(struct zps_members *members, struct lines *lines) {
  lines->n = 0;
  world.to = lines;
  zps_members_note_all(members);
  world.to = &world.journal;
  qsort(lines->text, lines->n, sizeof lines->text[0], compare);
}

static struct zps_members *make_again_until(const struct lines *journal, unsigned n) {
  const struct zps_members_config config = {.min_servers = 1,
                                            .max_jobs = 8,
                                            .max_tensors = 64,
                                            .replays = world.replays,
                                            .ctx = &world,
                                            .act = no_act,
                                            .random = on_random,
                                            .note = on_note};
  struct zps_members *members;
  assert_int_equal(zps_members_create(&config, &members), ZPS_OK);
  for (unsigned i = 0; i < n; i++) {
    struct zps_error error;
    zps_json *record;
    assert_int_equal(zps_json_parse(journal->text[i], strlen(journal->text[i]), &record, &error), ZPS_OK);
    if (zps_record_read(members, record, 5, &error)) fail_msg("%s: %s", journal->text[i], error.text);
    zps_json_unref(record);
  }
  return members;
}

static struct zps_members *make_again(const struct lines *journal) {
  return make_again_until(journal, journal->n);
}

static void same(const struct lines *a, const struct lines *b) {
  for (unsigned i = 0; i < a->n && i < b->n; i++) assert_string_equal(a->text[i], b->text[i]);
  assert_int_equal(a->n, b->n);
}

static bool is_whole(const struct zps_member_job *job) {
  uint32_t i = 0;
  while (i < job->view.n_places && zps_view_server(&job->view, i)) i++;
  return i == job->view.n_places;
}

static unsigned count_open_maps(const struct zps_members *members) {
  unsigned n = 0;
  for (const struct zps_member_job *job = zps_members_job_first(members); job; job = job->next)
    n += zps_member_map_is_open(job);
  return n;
}

/* A turn of which the first records alone are durable: nothing that its loss left half done stays so. */
static void check_torn(void) {
  static struct lines notes;
  for (unsigned cut = 1; cut <= 6 && cut < world.journal.n; cut++) {
    world.to = &notes;
    struct zps_members *copy = make_again_until(&world.journal, world.journal.n - cut);
    zps_members_restored(copy, 1000);
    for (const struct zps_member_job *job = zps_members_job_first(copy); job; job = job->next) {
      assert_true(job->state >= ZPS_JOB_RUNNING && job->n_joined > 0);
      if (job->state == ZPS_JOB_CLOSING) continue;
      assert_true(job->n_lost == 0 && (is_whole(job) || world.replays));
      for (uint32_t i = 0; i < job->n_tensors; i++)
        assert_true((job->tensors[i]->n_pending > 0) == (job->tensors[i]->state == ZPS_TENSOR_OPENING));
    }
    zps_members_destroy(copy);
    clear(&notes);
  }
  world.to = &world.journal;
}

static void check(void) {
  static struct lines first, again, third;
  check_torn();
  describe(world.members, &first);
  struct zps_members *copy = make_again(&world.journal);
  describe(copy, &again);
  same(&first, &again);
  world.to = &again; /* nothing is left to be brought to an end but maps, of which each begins anew */
  const unsigned n = again.n;
  const uint32_t epoch = zps_members_epoch(copy);
  zps_members_restored(copy, 1000);
  assert_int_equal(again.n, n + count_open_maps(world.members));
  assert_int_equal(count_open_maps(copy), count_open_maps(world.members));
  for (const struct zps_member_job *job = zps_members_job_first(copy); job; job = job->next)
    assert_true(!zps_member_map_is_open(job) || job->view.epoch > epoch);
  world.to = &world.journal;
  assert_int_equal(zps_members_servers(copy), zps_members_servers(world.members));
  for (unsigned i = 0; i < zps_members_servers(copy); i++) {
    const struct zps_member_server *server = zps_members_server(copy, i);
    assert_true(!server->client && server->until_ns == 1000);
  }
  zps_members_destroy(copy);
  /* Records in the order of a journal, not sorted: from one that was compacted. */
  static struct lines all;
  all.n = 0;
  world.to = &all;
  zps_members_note_all(world.members);
  world.to = &world.journal;
  copy = make_again(&all);
  describe(copy, &third);
  same(&first, &third);
  zps_members_destroy(copy);
  clear(&first);
  clear(&again);
  clear(&third);
  clear(&all);
}

/* ------------------------------------------------------------ events */

static const struct zps_net_info fabric = {
    .provider = "tcp", .addr_format = "FI_SOCKADDR_IN", .address = "127.0.0.1:1", .addr = {1, 2, 3}, .addr_len = 3};

static void toggle_server(unsigned i) {
  static const char *const names[SERVERS] = {"a", "b", "c"};
  struct zps_member_client *client = &world.servers[i];
  const struct zps_server_spec spec = {
      .name = names[i], .host = "h", .pid = i, .fabric = &fabric, .secret = 100 + i + world.now_ns};
  unsigned jobs;
  if (!client->server) {
    assert_int_equal(zps_members_server_register(world.members, client, &spec, false, NULL), ZPS_OK);
  } else if (zps_rng_below(&world.rng, 4) == 0) {
    assert_int_equal(zps_members_server_drain(world.members, client, &jobs, NULL), ZPS_OK);
  } else if (zps_rng_below(&world.rng, 3) == 0) {
    zps_members_client_lost(world.members, client, "gone");
  }
}

static void toggle_rank(unsigned i) {
  struct zps_member_client *client = &world.ranks[i];
  const struct zps_join_spec spec = {.job = "j",
                                     .host = "h",
                                     .rack = i ? "r" : NULL,
                                     .world = RANKS,
                                     .rank = i,
                                     .pid = i,
                                     .timeout_ms = 1000000,
                                     .fabric = &fabric,
                                     .secret = 200 + i};
  if (!client->job) {
    if (zps_members_join(world.members, client, &spec, client, world.now_ns, NULL)) assert_null(client->job);
  } else if (zps_rng_below(&world.rng, 16) == 0) {
    zps_members_client_lost(world.members, client, "killed");
  } else if (client->job->state >= ZPS_JOB_RUNNING && zps_rng_below(&world.rng, 4) == 0) {
    assert_int_equal(zps_members_leave(world.members, client, client->job->job_id, NULL), ZPS_OK);
  }
}

static void answer(void) {
  if (!world.n_calls) return;
  const unsigned at = (unsigned)zps_rng_below(&world.rng, world.n_calls);
  struct zps_member_client *client = &world.servers[world.calls[at].server];
  const zps_err_t code = zps_rng_below(&world.rng, 12) == 0 ? ZPS_ERR_NOMEM : ZPS_OK;
  const uint64_t job_id = world.calls[at].job_id;
  const uint32_t tensor = world.calls[at].tensor;
  const uint32_t epoch = world.calls[at].epoch;
  const enum zps_action_type type = world.calls[at].type;
  world.calls[at] = world.calls[--world.n_calls];
  if (type == ZPS_ACT_MAP_SERVER)
    zps_members_map_answered(world.members, client, job_id, epoch, code, "no");
  else if (type == ZPS_ACT_TENSOR_OPEN)
    zps_members_tensor_opened(world.members, client, job_id, tensor, code, "no \"room\"");
  else
    zps_members_job_opened(world.members, client, job_id, code, "no");
}

static void register_tensor(struct zps_member_client *client) {
  static const char *const names[] = {"t", "u", "v", "w"}, *const schemes[] = {"balanced", "auto", "sparse-ps"};
  const unsigned which = (unsigned)zps_rng_below(&world.rng, 4);
  if (!client->job) return;
  struct zps_tensor_spec spec = {.job_id = client->job->job_id,
                                 .rows = 1000 + which,
                                 .width = 2,
                                 .dtype = ZPS_DTYPE_F32,
                                 .op = ZPS_OP_SUM,
                                 .codec = ZPS_CODEC_AUTO,
                                 .value_codec = ZPS_VALUES_RAW,
                                 .block_bits = UINT32_MAX,
                                 .keep_zero_rows = which == 1};
  strcpy(spec.name, names[which]);
  strcpy(spec.scheme.name, schemes[which % 3]);
  if (which == 3) strcpy(spec.group, "g");
  if (zps_members_tensor_register(world.members, client, &spec, client, NULL)) return;
}

static void plan_or_close(struct zps_member_client *client, bool closes) {
  const struct zps_member_job *job = client->job;
  if (!job || job->n_tensors == 0) return;
  const uint32_t tensor = job->tensors[zps_rng_below(&world.rng, job->n_tensors)]->spec.tensor;
  const struct zps_plan_request told = {.report = {.step = world.now_ns / 3, .waits = true, .rounds = 1}};
  if (closes ? zps_settled(world.members,
                           zps_members_tensor_close(client, job->job_id, tensor, 1000, client, world.now_ns, NULL))
             : zps_members_plan(world.members, client, job->job_id, tensor, &told, NULL))
    return;
}

static void group(struct zps_member_client *client, bool closes) {
  static const uint32_t ranks[] = {0, 1, 2};
  if (!client->job) return;
  const uint64_t job_id = client->job->job_id;
  const struct zps_group_spec spec = {
      .job_id = job_id, .name = "g", .ranks = ranks, .n_ranks = 3, .timeout_ms = 1000000};
  zps_err_t err;
  if (closes)
    err = zps_members_group_close(world.members, client, job_id, "g", NULL);
  else if (zps_rng_below(&world.rng, 2))
    err = zps_members_group_open(world.members, client, &spec, client, world.now_ns, NULL);
  else
    err = zps_members_linked(world.members, client, job_id, 10000, client, world.now_ns, NULL);
  if (err) return;
}

static void mapped(struct zps_member_client *client) {
  if (!client->job) return;
  uint64_t step = zps_rng_below(&world.rng, 4);
  struct zps_tensor_steps of = {
      .tensor = (uint32_t)zps_rng_below(&world.rng, 4), .n_steps = 1, .cap_steps = 1, .steps = &step};
  const struct zps_job_steps steps = {
      .job_id = client->job->job_id, .epoch = client->job->view.epoch, .n_tensors = 1, .tensors = &of};
  if (zps_settled(world.members, zps_members_mapped(client, &steps, NULL))) return;
}

/* Long enough for servers that are there to take free places. */
static void in_peace(void) {
  for (unsigned i = 0; i < SERVERS; i++)
    if (!world.servers[i].server) toggle_server(i);
  for (unsigned turn = 0; turn < 4; turn++) {
    while (world.n_calls) answer();
    for (unsigned r = 0; r < RANKS; r++) mapped(&world.ranks[r]);
    world.now_ns += 3 * ZPS_NS_PER_S;
    zps_members_tick(world.members, world.now_ns);
  }
}

static void suspect(struct zps_member_client *client) {
  if (!client->job || client->job->view.n_places == 0) return;
  uint32_t server = (uint32_t)zps_rng_below(&world.rng, client->job->view.n_places);
  const struct zps_job_suspects suspects = {
      .job_id = client->job->job_id, .n_servers = 1, .servers = &server, .why = "cut"};
  if (zps_members_suspect(client, &suspects, NULL)) return;
  zps_members_tick(world.members, world.now_ns);
  world.now_ns += ZPS_NS_PER_S;
  zps_members_tick(world.members, world.now_ns);
}

static void kick(uint32_t rank) {
  struct zps_member_kicked kicked;
  if (zps_members_kick(world.members, "j", rank, "it is \"slow\"", &kicked, NULL)) return;
  assert_int_equal(kicked.rank, rank);
}

static void event(void) {
  struct zps_member_client *rank = &world.ranks[zps_rng_below(&world.rng, RANKS)];
  world.now_ns++;
  if (world.takes_in && zps_rng_below(&world.rng, 10) == 0) {
    in_peace();
    return;
  }
  switch (zps_rng_below(&world.rng, 16)) {
    case 0:
      toggle_server((unsigned)zps_rng_below(&world.rng, SERVERS));
      break;
    case 1:
    case 2:
      toggle_rank((unsigned)(rank - world.ranks));
      break;
    case 3:
    case 4:
    case 5:
      register_tensor(rank);
      break;
    case 6:
      plan_or_close(rank, true);
      break;
    case 7:
      plan_or_close(rank, false);
      break;
    case 8:
      group(rank, false);
      break;
    case 9:
      group(rank, zps_rng_below(&world.rng, 2) == 0);
      break;
    case 10:
    case 11:
      mapped(rank);
      break;
    case 12:
      if (zps_rng_below(&world.rng, 16) == 0) suspect(rank);
      break;
    case 13:
      if (zps_rng_below(&world.rng, 16) == 0) kick((uint32_t)(rank - world.ranks));
      break;
    default:
      answer();
  }
}

static void test_made_again(void **state) {
  (void)state;
  unsigned n_jobs = 0, n_tensors = 0, n_groups = 0, n_maps = 0, n_replays = 0, n_taken = 0, n_kicked = 0;
  for (uint64_t seed = 0; seed < 200; seed += THIN_STRIDE) {
    memset(&world, 0, sizeof world);
    world.rng = (struct zps_rng){seed};
    world.to = &world.journal;
    world.replays = seed % 4 > 0;
    world.takes_in = seed % 2 > 0;
    const struct zps_members_config config = {.min_servers = 1,
                                              .replays = world.replays,
                                              .max_jobs = 8,
                                              .max_tensors = 64,
                                              .leave_grace_ms = 1000000000, /* leaving is not recorded */
                                              .ctx = &world,
                                              .act = on_act,
                                              .random = on_random,
                                              .note = on_note};
    assert_int_equal(zps_members_create(&config, &world.members), ZPS_OK);
    assert_int_equal(zps_members_set_weights(world.members, seed % 2 ? "j:7" : NULL), ZPS_OK);
    for (unsigned i = 0; i < 500; i++) {
      event();
      if (i % 10 == 9) check();
    }
    for (unsigned i = 0; i < world.journal.n; i++) {
      n_jobs += strstr(world.journal.text[i], "\"what\":\"job\"") != NULL;
      n_tensors += strstr(world.journal.text[i], "\"what\":\"tensor.gone\"") != NULL;
      n_groups += strstr(world.journal.text[i], "\"what\":\"seat\"") != NULL;
      n_maps += strstr(world.journal.text[i], "\"maps\":true") != NULL;
      n_replays += strstr(world.journal.text[i], "\"replay\":{") != NULL;
      n_taken += strstr(world.journal.text[i], "\"since\":") != NULL;
      n_kicked += strstr(world.journal.text[i], "\"what\":\"expelled\"") != NULL;
    }
    for (unsigned i = 0; i < RANKS; i++) zps_members_client_lost(world.members, &world.ranks[i], "end");
    for (unsigned i = 0; i < SERVERS; i++) zps_members_client_lost(world.members, &world.servers[i], "end");
    check();
    assert_int_equal(zps_members_jobs(world.members), 0);
    zps_members_destroy(world.members);
    clear(&world.journal);
  }
  /* It has seen something; a sample of the seeds need not have seen what is rare. */
  assert_true(n_jobs > 0 && n_tensors > 0);
  if (THIN_STRIDE == 1)
    assert_true(n_jobs > 100 && n_tensors > 100 && n_groups > 5 && n_maps > 50 && n_replays > 20 && n_taken > 10 &&
                n_kicked > 80);
}

/* Coordinators of former days kept what ranks have agreed on. */
static void test_runs_of_former_days(void **state) {
  (void)state;
  struct zps_error error;
  zps_json *const run = zps_json_set_str(zps_json_object(), "what", "run");
  assert_int_equal(zps_record_read(NULL, run, 0, &error), ZPS_OK);
  zps_json *const other = zps_json_set_str(run, "what", "walk");
  assert_int_equal(zps_record_read(NULL, other, 0, &error), ZPS_ERR_PROTOCOL);
  assert_string_equal(error.text, "there is no record of 'walk'");
  zps_json_unref(other);
}

static void sink(void *ctx, const struct zps_log_line *line) {
  (void)ctx;
  assert_true(line->level > ZPS_LOG_ERROR); /* losing peers is for warnings */
}

int main(void) {
  zps_log_set_sink(sink, NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_made_again),
      cmocka_unit_test(test_runs_of_former_days),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
