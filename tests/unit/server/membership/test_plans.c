/* Tensors whose scheme the coordinator chooses: the reports of ranks, and what is proposed to the first of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "common/plan/sketch.h"
#include "server/membership/members.h"
#include "tests/support/settled.h"

enum { WORLD = 8, SERVERS = 2, MAIL = 1024 };

struct told {
  const struct zps_member_client *client;
  uint32_t tensor;
  bool whole;
  unsigned n_runs;
  struct zps_plan_run first;
};

static struct {
  struct zps_members *members;
  struct zps_member_client servers[SERVERS], ranks[WORLD];
  struct told mail[MAIL];
  unsigned n_mail, n_opened;
  const char *group; /* of tensors that are opened, with `opener` */
  unsigned opener;
  struct zps_error error;
  uint64_t job_id, random;
} t;

static void on_act(void *ctx, const struct zps_action *action) {
  (void)ctx;
  if (action->type == ZPS_ACT_TENSOR_OPEN) t.n_opened++;
  if (action->type != ZPS_ACT_TENSOR_PLAN) return;
  assert_true(t.n_mail < MAIL && action->n_runs > 0);
  t.mail[t.n_mail++] = (struct told){.client = action->client,
                                     .tensor = action->tensor->spec.tensor,
                                     .whole = action->whole,
                                     .n_runs = action->n_runs,
                                     .first = action->runs[0]};
}

static uint64_t on_random(void *ctx) {
  (void)ctx;
  return ++t.random;
}

static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};

/* A job of eight ranks, some a host, and two servers of their own. */
static int setup_hosts(unsigned per_host) {
  memset(&t, 0, sizeof t);
  const struct zps_members_config config = {
      .min_servers = 2, .max_jobs = 2, .max_tensors = 4, .act = on_act, .random = on_random};
  if (zps_members_create(&config, &t.members)) return 1;
  for (unsigned i = 0; i < SERVERS; i++) {
    const struct zps_server_spec spec = {.name = i ? "b" : "a", .host = i ? "s1" : "s0", .pid = i, .fabric = &fabric};
    if (zps_members_server_register(t.members, &t.servers[i], &spec, false, &t.error)) return 1;
  }
  for (unsigned r = 0; r < WORLD; r++) {
    char host[8];
    snprintf(host, sizeof host, "h%u", r / per_host);
    const struct zps_join_spec spec = {
        .job = "x", .host = host, .world = WORLD, .rank = r, .timeout_ms = 1000, .fabric = &fabric, .secret = r + 1};
    if (zps_members_join(t.members, &t.ranks[r], &spec, &t, 0, &t.error)) return 1;
  }
  t.job_id = zps_members_job_first(t.members)->job_id;
  for (unsigned i = 0; i < SERVERS; i++) zps_members_job_opened(t.members, &t.servers[i], t.job_id, ZPS_OK, "");
  return 0;
}

static int setup(void **state) {
  (void)state;
  return setup_hosts(2);
}

static int setup_alone(void **state) {
  (void)state;
  return setup_hosts(1);
}

static int teardown(void **state) {
  (void)state;
  for (unsigned r = 0; r < WORLD; r++) zps_members_client_lost(t.members, &t.ranks[r], "end");
  for (unsigned i = 0; i < SERVERS; i++) zps_members_client_lost(t.members, &t.servers[i], "end");
  zps_members_destroy(t.members);
  return 0;
}

/* A scheme's name; "auto:" and names is a choice among these. */
static zps_err_t open_tensor(const char *name, const char *scheme) {
  struct zps_tensor_spec spec = {.job_id = t.job_id,
                                 .rows = 4000000,
                                 .width = 1,
                                 .dtype = ZPS_DTYPE_F32,
                                 .op = ZPS_OP_SUM,
                                 .block_bits = UINT32_MAX,
                                 .codec = ZPS_CODEC_AUTO,
                                 .value_codec = ZPS_VALUES_RAW};
  snprintf(spec.name, sizeof spec.name, "%s", name);
  const size_t len = strcspn(scheme, ":");
  snprintf(spec.scheme.name, sizeof spec.scheme.name, "%.*s", (int)len, scheme);
  if (scheme[len])
    assert_int_equal(zps_plan_schemes_parse(scheme + len + 1, strlen(scheme + len + 1), &spec.scheme.choices, &t.error),
                     ZPS_OK);
  if (t.group) snprintf(spec.group, sizeof spec.group, "%s", t.group);
  return zps_members_tensor_register(t.members, &t.ranks[t.opener], &spec, &t, &t.error);
}

/* Rank `rank` asks for `step`, having had 8 rounds of so many rows. */
static zps_err_t ask(unsigned rank, uint64_t step, enum zps_plan_scheme scheme, double rows, double union_rows) {
  const struct zps_plan_request told = {.report = {.step = step,
                                                   .scheme = scheme,
                                                   .rounds = rows > 0 ? 8 : 0,
                                                   .waits = step == 0,
                                                   .rows = 8 * rows,
                                                   .union_rows = 8 * union_rows},
                                        .bandwidth = 5e8, /* its share of a host's */
                                        .latency_s = 1e-5};
  return zps_members_plan(t.members, &t.ranks[rank], t.job_id, 0, &told, &t.error);
}

/* All ranks ask. */
static zps_err_t ask_all(uint64_t step, enum zps_plan_scheme scheme, double rows, double union_rows) {
  zps_err_t err = ZPS_OK;
  for (unsigned r = 0; r < WORLD && err == ZPS_OK; r++) err = ask(r, step, scheme, rows, union_rows);
  return err;
}

/* Proposals are for the first rank, which decides, whoever asks. */
static void test_the_first_rank_hears(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto"), ZPS_OK);
  assert_int_equal(t.n_opened, SERVERS); /* servers hold it: balanced may be chosen */
  assert_int_equal(ask(3, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(t.n_mail, 1);
  assert_ptr_equal(t.mail[0].client, &t.ranks[0]);
  assert_true(!t.mail[0].whole && t.mail[0].n_runs == 1);
  assert_true(t.mail[0].first.from == 0 && t.mail[0].first.until == 6);
  assert_int_equal(t.mail[0].first.scheme, ZPS_PLAN_BALANCED);
  /* When it asks for a step that was spoken of, it hears all; others have no use for it. */
  assert_int_equal(ask(5, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(t.n_mail, 1);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(t.n_mail, 2);
  assert_true(t.mail[1].whole && t.mail[1].client == &t.ranks[0]);
  assert_int_equal(t.mail[1].first.until, 6);
}

/* A choice is made when all have told, or when one cannot wait; those that have left, or cannot tell, are not waited
 * for. */
static void test_all_are_heard_first(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(t.n_mail, 1);
  assert_int_equal(zps_members_leave(t.members, &t.ranks[2], t.job_id, &t.error), ZPS_OK);
  zps_members_client_away(t.members, &t.ranks[6], UINT64_MAX, "cut");
  for (unsigned r = 0; r < WORLD; r++) {
    assert_int_equal(t.n_mail, 1);
    if (r != 2 && r != 6) assert_int_equal(ask(r, 6, ZPS_PLAN_BALANCED, 4e3, 2e4), ZPS_OK);
    if (r != 2 && r != 6)
      assert_int_equal(r == WORLD - 1 ? ZPS_OK : ask(0, 6, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK); /* twice is once */
  }
  assert_int_equal(t.n_mail, 2);
  assert_int_equal(t.mail[1].first.from, 6);
  const struct zps_plan_request hurried = {.report = {.step = 40, .waits = true}};
  assert_int_equal(zps_members_plan(t.members, &t.ranks[1], t.job_id, 0, &hurried, &t.error), ZPS_OK);
  assert_int_equal(t.n_mail, 3);
}

/* Ranks that knew each other before they knew this coordinator: it goes on from what they do. */
static void test_what_runs_is_taken_up(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto:balanced,ring"), ZPS_OK);
  const struct zps_member_tensor *tensor = zps_members_job_first(t.members)->tensors[0];
  assert_int_equal(ask(3, 1000, ZPS_PLAN_DSAR, 4e3, 2e4), ZPS_OK); /* a scheme that is not allowed */
  assert_int_equal(zps_member_plan_scheme(tensor->plan), ZPS_PLAN_BALANCED);
  assert_int_equal(ask(4, 1000, ZPS_PLAN_RING, 4e3, 2e4), ZPS_OK);
  assert_int_equal(zps_member_plan_scheme(tensor->plan), ZPS_PLAN_RING);
  assert_int_equal(t.n_mail, 0);
  assert_int_equal(ask_all(1000, ZPS_PLAN_RING, 4e3, 2e4), ZPS_OK);
  assert_int_equal(t.n_mail, 1);
  assert_true(t.mail[0].first.from <= 1000 && t.mail[0].first.until > 1000);
}

/* A rank that wants lists of rows gets no scheme whose sums have all rows. */
static void test_lists_rule_dense_schemes_out(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  for (uint64_t step = 6; step < 200; step = t.mail[t.n_mail - 1].first.until) {
    const enum zps_plan_scheme now = t.mail[t.n_mail - 1].first.scheme;
    assert_true(zps_plan_scheme_shows_union(now));
    for (unsigned r = 0; r < WORLD; r++) {
      const struct zps_plan_request told = {
          .report = {.step = step, .scheme = now, .rounds = 6, .rows = 6 * 4e6, .union_rows = 6 * 4e6},
          .lists = r == 0};
      assert_int_equal(zps_members_plan(t.members, &t.ranks[r], t.job_id, 0, &told, &t.error), ZPS_OK);
    }
  }
}

/* The measurements of ranks count: the coordinator finds the scheme that takes least of their time. */
static void test_measured_times_decide(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto:balanced,split-allgather,agsparse"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  const struct zps_plan_run *run = &t.mail[0].first;
  for (unsigned i = 0; i < 20; i++) {
    for (unsigned r = 0; r < WORLD; r++) {
      const double round_s = run->scheme == ZPS_PLAN_SPLIT_ALLGATHER ? 0.02 : 0.03;
      const struct zps_plan_request told = {.report = {.step = run->until,
                                                       .scheme = run->scheme,
                                                       .rounds = 6,
                                                       .rows = 6 * 4e4,
                                                       .union_rows = 6 * 2e5,
                                                       .round_s = round_s + 1e-3 * r}};
      assert_int_equal(zps_members_plan(t.members, &t.ranks[r], t.job_id, 0, &told, &t.error), ZPS_OK);
    }
    run = &t.mail[t.n_mail - 1].first;
  }
  assert_int_equal(run->scheme, ZPS_PLAN_SPLIT_ALLGATHER);
  assert_int_equal(run->until - run->from, 16);
}

/* Schemes that wait for something else leave most of a link unused: that says nothing against those which would not. */
static void test_slow_schemes_do_not_slow_links(void **state) {
  (void)state;
  static const struct {
    double round_s, bandwidth;
  } took[ZPS_PLAN_SCHEMES] = {[ZPS_PLAN_BALANCED] = {0.2, 90e6},
                              [ZPS_PLAN_DSAR] = {0.08, 400e6},
                              [ZPS_PLAN_AGSPARSE] = {0.2, 60e6},
                              [ZPS_PLAN_DENSE_SPLIT] = {0.07, 400e6}};
  assert_int_equal(open_tensor("w", "auto:balanced,dsar,agsparse,dense-split"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  const struct zps_plan_run *run = &t.mail[0].first;
  for (unsigned i = 0; i < 40; i++) {
    for (unsigned r = 0; r < WORLD; r++) {
      const struct zps_plan_request told = {.report = {.step = run->until,
                                                       .scheme = run->scheme,
                                                       .rounds = 4,
                                                       .rows = 4 * 2e5,
                                                       .union_rows = 4 * 1.3e6,
                                                       .round_s = took[run->scheme].round_s},
                                            .bandwidth = took[run->scheme].bandwidth};
      assert_int_equal(zps_members_plan(t.members, &t.ranks[r], t.job_id, 0, &told, &t.error), ZPS_OK);
    }
    run = &t.mail[t.n_mail - 1].first;
  }
  assert_int_equal(run->scheme, ZPS_PLAN_DENSE_SPLIT);
}

/* Rank `rank` reports `rounds` rounds of so many seconds. `first`: they were the first of their scheme. */
static void tell(unsigned rank, uint64_t step, enum zps_plan_scheme scheme, uint64_t rounds, double seconds,
                 bool first) {
  const struct zps_plan_request told = {.report = {.step = step,
                                                   .waits = first,
                                                   .scheme = scheme,
                                                   .rounds = rounds,
                                                   .rows = 4e3 * (double)rounds,
                                                   .union_rows = 2e4 * (double)rounds,
                                                   .round_s = first ? 0 : seconds,
                                                   .first_s = first ? seconds : 0},
                                        .bandwidth = 5e8,
                                        .latency_s = 1e-5};
  assert_int_equal(zps_members_plan(t.members, &t.ranks[rank], t.job_id, 0, &told, &t.error), ZPS_OK);
}

/* A scheme on trial has a run of one step. Where that takes far longer than others' rounds, it is the last. */
static void test_a_trial_begins_with_one_round(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto:balanced,split-allgather,agsparse"), ZPS_OK);
  const struct zps_member_tensor *tensor = zps_members_job_first(t.members)->tensors[0];
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  const struct zps_plan_run *run = &t.mail[0].first;
  unsigned steps[ZPS_PLAN_SCHEMES] = {0}, first[ZPS_PLAN_SCHEMES] = {0};
  for (unsigned i = 0; i < 40; i++) {
    const struct zps_plan_run now = *run;
    const bool alone = now.until - now.from == 1, slow = now.scheme == ZPS_PLAN_AGSPARSE;
    if (steps[now.scheme] == 0) first[now.scheme] = (unsigned)(now.until - now.from);
    steps[now.scheme] += (unsigned)(now.until - now.from);
    /* One rank waits, and the others tell of the same round when it was judged. */
    for (unsigned r = 0; r < WORLD; r++) tell(r, now.until, now.scheme, now.until - now.from, slow ? 2 : 0.2, alone);
    run = &t.mail[t.n_mail - 1].first;
  }
  assert_true(steps[ZPS_PLAN_SPLIT_ALLGATHER] > 1 && first[ZPS_PLAN_SPLIT_ALLGATHER] == 1);
  assert_int_equal(steps[ZPS_PLAN_AGSPARSE], 1);
  assert_int_equal(zps_member_plan_left_out(tensor->plan), 1u << ZPS_PLAN_AGSPARSE);
  assert_int_equal(run->until - run->from, 16); /* one scheme is held */
}

/* Links whose rate looks a thousand times as high as it is: dense schemes, with hundreds of times the bytes, have no
 * run.
 */
static void test_slow_links_have_no_dense_trial(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto"), ZPS_OK);
  const struct zps_member_tensor *tensor = zps_members_job_first(t.members)->tensors[0];
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  const struct zps_plan_run *run = &t.mail[0].first;
  for (unsigned i = 0; i < 60; i++) {
    const struct zps_plan_run now = *run;
    const bool alone = now.until - now.from == 1;
    if (zps_plan_scheme_all_values(now.scheme) || now.scheme == ZPS_PLAN_DSAR)
      fail_msg("%s is tried", zps_plan_scheme_name(now.scheme));
    for (unsigned r = 0; r < WORLD; r++) tell(r, now.until, now.scheme, now.until - now.from, 0.2, alone);
    run = &t.mail[t.n_mail - 1].first;
  }
  assert_true(zps_member_plan_left_out(tensor->plan) >> ZPS_PLAN_DSAR & 1);
}

/* The first steps of a tensor that may be dense or gathered: what is safe at any density. */
static void test_the_first_scheme_is_safe(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto:dsar,agsparse,ring,split-allgather"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(t.mail[0].first.scheme, ZPS_PLAN_SPLIT_ALLGATHER);
}

/* Rank `rank` tells of a gradient that shares no row with others', under a scheme that does not show their union. */
static void tell_disjoint(unsigned rank, uint64_t step, bool waits) {
  int64_t rows[128];
  struct zps_plan_sketch sketch;
  for (unsigned i = 0; i < 128; i++) rows[i] = (int64_t)(i * 8 + rank) * 1000;
  zps_plan_sketch_list(&sketch, 4000000, rows, 128);
  const struct zps_plan_request told = {
      .report = {.step = step, .scheme = ZPS_PLAN_DSAR, .rounds = 5, .waits = waits, .rows = 5 * 128, .union_rows = 0},
      .sketch = &sketch};
  assert_int_equal(zps_members_plan(t.members, &t.ranks[rank], t.job_id, 0, &told, &t.error), ZPS_OK);
}

/* One that reports several times is one: its rows would overlap with themselves, and the gradients seem others. */
static void test_sketches_are_of_different_ranks(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto:dsar"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_DSAR, 0, 0), ZPS_OK);
  const struct zps_plan_run *run = &t.mail[0].first;
  for (unsigned i = 0; i < 8; i++) {
    const uint64_t step = run->until;
    for (unsigned r = 0; r < WORLD; r++) tell_disjoint(r, step, false);
    run = &t.mail[t.n_mail - 1].first;
  }
  assert_int_equal(run->until - run->from, 16);
  const uint64_t step = run->until;
  for (unsigned i = 0; i < WORLD - 1; i++) tell_disjoint(0, step, false);
  tell_disjoint(1, step, true);
  run = &t.mail[t.n_mail - 1].first;
  assert_true(run->from == step && run->until - run->from == 16);
}

/* Full gradients are cheaper as such: the second run is dense. */
static void test_reports_decide(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto:balanced,recursive-doubling,ring,rabenseifner,blueconnect"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(ask_all(6, ZPS_PLAN_BALANCED, 4e6, 4e6), ZPS_OK);
  assert_int_equal(t.n_mail, 2);
  const struct zps_plan_run *run = &t.mail[1].first;
  assert_true(run->from == 6 && run->until == 7); /* its first round is alone */
  assert_true(zps_plan_scheme_all_values(run->scheme));
  const struct zps_member_tensor *tensor = zps_members_job_first(t.members)->tensors[0];
  assert_int_equal(zps_member_plan_scheme(tensor->plan), run->scheme);
  /* All runs, for one that has not heard: two. */
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(t.mail[2].n_runs, 2);
  /* Sparse ones again: another profile, then another choice. */
  for (uint64_t step = run->until; step < 200 && zps_plan_scheme_all_values(run->scheme); step = run->until) {
    assert_int_equal(ask_all(step, run->scheme, 400, 3000), ZPS_OK);
    run = &t.mail[t.n_mail - 1].first;
    assert_int_equal(run->from, step);
  }
  assert_false(zps_plan_scheme_all_values(run->scheme));
}

/* Whether hierarchical is among the schemes that are tried. */
static bool tries_hierarchical(const char *scheme) {
  bool tried = false;
  assert_int_equal(open_tensor("w", scheme), ZPS_OK);
  uint64_t step = 0;
  for (unsigned i = 0; i < 40; i++, step = t.mail[t.n_mail - 1].first.until) {
    const enum zps_plan_scheme now = t.n_mail ? t.mail[t.n_mail - 1].first.scheme : ZPS_PLAN_BALANCED;
    assert_int_equal(ask_all(step, now, 4e4, 3e5), ZPS_OK);
    tried = tried || t.mail[t.n_mail - 1].first.scheme == ZPS_PLAN_HIERARCHICAL;
  }
  return tried;
}

static void test_hosts_first_with_several_ranks_a_host(void **state) {
  (void)state;
  assert_true(tries_hierarchical("auto:balanced,hierarchical"));
}

static void test_not_with_one_rank_a_host(void **state) {
  (void)state;
  assert_false(tries_hierarchical("auto:balanced,hierarchical"));
}

static void test_but_where_nothing_else_may_be(void **state) {
  (void)state;
  assert_true(tries_hierarchical("auto:dense-ps,hierarchical"));
}

static void test_only_what_was_named(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto:ring,oktopk"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(t.mail[0].first.scheme, ZPS_PLAN_OKTOPK); /* ring could take a hundred times as long */
  assert_int_equal(ask_all(6, ZPS_PLAN_OKTOPK, 4e6, 4e6), ZPS_OK);
  assert_int_equal(t.mail[1].first.scheme, ZPS_PLAN_RING);
}

/* Nor any that adds in another order than balanced. */
static void test_lossy_schemes_are_never_taken_unasked(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto"), ZPS_OK);
  static const double rows[] = {0, 4, 400, 4e4, 4e6};
  uint64_t step = 0;
  for (unsigned i = 0; i < 40; i++, step = t.mail[t.n_mail - 1].first.until) {
    const enum zps_plan_scheme now = t.n_mail ? t.mail[t.n_mail - 1].first.scheme : ZPS_PLAN_BALANCED;
    const double own = rows[i / 8];
    assert_int_equal(ask_all(step, now, own, own * 4 > 4e6 ? 4e6 : own * 4), ZPS_OK);
    assert_true(zps_plan_scheme_alike(t.mail[t.n_mail - 1].first.scheme));
  }
}

/* Reports that cannot be change nothing, and asks about nothing are refused. */
static void test_hostile_reports(void **state) {
  (void)state;
  assert_int_equal(open_tensor("fixed", "balanced"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_ERR_UNKNOWN);
  assert_non_null(strstr(t.error.text, "no tensor 0 whose scheme is auto"));
  assert_int_equal(open_tensor("automatic", "automatic"), ZPS_OK); /* the workers' own affair */
  assert_null(zps_members_job_first(t.members)->tensors[1]->plan);
  const struct zps_plan_request absurd = {.report = {.step = UINT64_MAX - 1,
                                                     .scheme = ZPS_PLAN_RING,
                                                     .rounds = UINT64_MAX,
                                                     .rows = 1e308,
                                                     .union_rows = 1e308,
                                                     .waits = true,
                                                     .round_s = 1e308},
                                          .bandwidth = 1e-300,
                                          .latency_s = 1e300};
  assert_int_equal(zps_members_plan(t.members, &t.ranks[0], t.job_id, 99, &absurd, &t.error), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_members_plan(t.members, &t.ranks[0], 7, 0, &absurd, &t.error), ZPS_ERR_UNKNOWN);
  assert_int_equal(open_tensor("w", "auto"), ZPS_OK);
  assert_int_equal(zps_members_plan(t.members, &t.ranks[0], t.job_id, 2, &absurd, &t.error), ZPS_OK);
  assert_int_equal(zps_members_plan(t.members, &t.ranks[0], t.job_id, 2, &absurd, &t.error), ZPS_OK);
  assert_int_equal(t.n_mail, 2);
  assert_true(t.mail[0].first.from == 0 && t.mail[0].first.until == UINT64_MAX);
  assert_int_equal(t.mail[1].n_runs, 1);
}

/* A rank that has left is told nothing. */
static void test_ranks_that_left(void **state) {
  (void)state;
  assert_int_equal(open_tensor("w", "auto"), ZPS_OK);
  assert_int_equal(zps_members_leave(t.members, &t.ranks[0], t.job_id, &t.error), ZPS_OK);
  assert_int_equal(ask(4, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(t.n_mail, 0);
}

/* A tensor of a group is the affair of its ranks. */
static void test_groups_choose_for_themselves(void **state) {
  (void)state;
  static const uint32_t ranks[] = {2, 3, 6};
  const struct zps_group_spec group = {
      .job_id = t.job_id, .name = "g", .ranks = ranks, .n_ranks = 3, .timeout_ms = 1500};
  for (unsigned i = 0; i < 3; i++)
    assert_int_equal(zps_members_group_open(t.members, &t.ranks[ranks[i]], &group, &t, 0, &t.error), ZPS_OK);
  t.group = "g";
  t.opener = 3;
  assert_int_equal(open_tensor("w", "auto"), ZPS_OK);
  assert_int_equal(ask(0, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_ERR_UNKNOWN);
  assert_string_equal(t.error.text, "rank 0 is none of the ranks of tensor 'w' of job 'x'");
  assert_int_equal(ask(2, 0, ZPS_PLAN_BALANCED, 0, 0), ZPS_OK);
  assert_int_equal(t.n_mail, 1);
  assert_ptr_equal(t.mail[0].client, &t.ranks[2]);
  for (unsigned i = 0; i < 3; i++) {
    assert_int_equal(t.n_mail, 1);
    assert_int_equal(ask(ranks[i], 6, ZPS_PLAN_BALANCED, 4e3, 2e4), ZPS_OK);
  }
  assert_int_equal(t.n_mail, 2);
  assert_int_equal(t.mail[1].first.from, 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_the_first_rank_hears, setup, teardown),
      cmocka_unit_test_setup_teardown(test_all_are_heard_first, setup, teardown),
      cmocka_unit_test_setup_teardown(test_what_runs_is_taken_up, setup, teardown),
      cmocka_unit_test_setup_teardown(test_lists_rule_dense_schemes_out, setup, teardown),
      cmocka_unit_test_setup_teardown(test_measured_times_decide, setup, teardown),
      cmocka_unit_test_setup_teardown(test_slow_schemes_do_not_slow_links, setup, teardown),
      cmocka_unit_test_setup_teardown(test_a_trial_begins_with_one_round, setup, teardown),
      cmocka_unit_test_setup_teardown(test_slow_links_have_no_dense_trial, setup, teardown),
      cmocka_unit_test_setup_teardown(test_the_first_scheme_is_safe, setup, teardown),
      cmocka_unit_test_setup_teardown(test_sketches_are_of_different_ranks, setup, teardown),
      cmocka_unit_test_setup_teardown(test_reports_decide, setup, teardown),
      cmocka_unit_test_setup_teardown(test_hosts_first_with_several_ranks_a_host, setup, teardown),
      cmocka_unit_test_setup_teardown(test_not_with_one_rank_a_host, setup_alone, teardown),
      cmocka_unit_test_setup_teardown(test_but_where_nothing_else_may_be, setup_alone, teardown),
      cmocka_unit_test_setup_teardown(test_only_what_was_named, setup, teardown),
      cmocka_unit_test_setup_teardown(test_lossy_schemes_are_never_taken_unasked, setup, teardown),
      cmocka_unit_test_setup_teardown(test_hostile_reports, setup, teardown),
      cmocka_unit_test_setup_teardown(test_ranks_that_left, setup, teardown),
      cmocka_unit_test_setup_teardown(test_groups_choose_for_themselves, setup, teardown),
  };
  zps_log_set_level(ZPS_LOG_ERROR); /* teardown loses everyone */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
