/* Linked by --wrap: without a bug switched on these do what they stand before. */
#include "tests/sim/break.h"

#include <string.h>

#include "common/codec/owners.h"
#include "common/codec/reduce.h"
#include "common/codec/runs.h"
#include "common/control/client.h"
#include "proto/control_next.h"
#include "server/membership/members.h"
#include "common/plan/agree.h"
#include "common/session/checks.h"
#include "common/session/early.h"
#include "common/session/link.h"
#include "common/session/unacked.h"
#include "server/shard/job.h"
#include "server/shard/machine_impl.h"
#include "server/shard/pick.h"
#include "server/shard/quota.h"
#include "server/shard/shard_impl.h"
#include "server/state/store.h"
#include "tests/sim/sched.h"
#include "worker/compute/compute.h"
#include "worker/plane/shared/segment.h"
#include "worker/plane/unexpected.h"
#include "worker/round/rounds.h"

enum {
  BREAK_NOTHING,
  BREAK_ORDER,
  BREAK_MISSING,
  BREAK_REPLAY,
  BREAK_FRAME,
  BREAK_MAP,
  BREAK_LEAK,
  BREAK_SYNC,
  BREAK_AGREE,
  BREAK_PICK,
  BREAK_DEAF,
  BREAK_MISSED,
  BREAK_EARLY,
  BREAK_PART,
  BREAK_SEAT,
  BREAK_STEP,
  BREAK_MIXED,
  BREAK_QUOTA,
  BREAK_DEBT,
  BREAK_NOTE,
  BREAK_SHARED,
  BREAK_CHECKS,
  BREAK_FREE,
  BREAK_RESEND,
  BREAK_TWICE,
  BREAK_AHEAD,
  BREAK_DECIDE,
  BREAK_FEW
};
enum {
  FRAMES_A_LOSS = 100,
  SUMS_A_MISTAKE = 20,
  PUTS_A_LEAK = 20,
  READS_A_MISTAKE = 20,
  WORDS_A_MISTAKE = 4,
  VIEWS_MAX = 64
};

static const char *const names[] = {
    [BREAK_NOTHING] = "nothing", [BREAK_ORDER] = "order", /* contributions are added in another order */
    [BREAK_MISSING] = "missing",                          /* the last one is left out */
    [BREAK_REPLAY] = "replay",                            /* ranks do not push again what a lost server had */
    [BREAK_FRAME] = "frame",                              /* frames are lost, now and then */
    [BREAK_MAP] = "map",       /* servers do not take over the partitions of a lost one, but say so */
    [BREAK_LEAK] = "leak",     /* buffers are not given back, now and then */
    [BREAK_SYNC] = "sync",     /* the disk syncs nothing */
    [BREAK_AGREE] = "agree",   /* ranks take the next steps for some of another scheme, now and then */
    [BREAK_CHECKS] = "checks", /* nobody compares what was read with its checksum */
    [BREAK_PICK] = "pick",     /* servers leave out some of the rows that a rank pulls */
    [BREAK_MISSED] = "missed", /* what there was no memory for is not asked for again */
    [BREAK_DEAF] = "deaf",     /* servers are not told of what was canceled */
    [BREAK_EARLY] = "early",   /* messages of other ranks for rounds that have not begun here are lost */
    [BREAK_SEAT] = "seat",     /* a rank that moves on is taken for one that leaves */
    [BREAK_STEP] = "step",     /* ranks do not say how many steps they have done */
    [BREAK_MIXED] = "mixed",   /* a rank that is gone from one job is to servers gone from all */
    [BREAK_QUOTA] = "quota",   /* what a job may have is what all jobs may have together */
    [BREAK_NOTE] = "note",     /* a record that there was no memory for is left out of the journal */
    [BREAK_SHARED] = "shared", /* ranks read what shared memory had before, now and then */
    [BREAK_DEBT] = "debt",     /* a job is charged more than it gets back */
    [BREAK_FREE] = "free",     /* servers deal the partitions of free places as those of lost servers */
    [BREAK_RESEND] = "resend", /* the first message that a cut lost is not sent again */
    [BREAK_TWICE] = "twice",   /* a message that has come before is taken again */
    [BREAK_AHEAD] = "ahead",   /* messages that come too early are dropped */
    [BREAK_DECIDE] = "decide", /* ranks do not tell a new owner that an earlier one has closed a round */
    [BREAK_FEW] = "few",       /* a round goes on without a lost rank, also with fewer than its quorum */
    [BREAK_PART] = "part",     /* ranks leave out the last of several streams that they add, now and then */
};
static int broken;

bool sim_break(const char *name) {
  for (broken = sizeof names / sizeof names[0] - 1; broken > 0; broken--)
    if (strcmp(names[broken], name) == 0) return true;
  return false;
}

const char *sim_break_name(unsigned i) {
  return i + 1 < sizeof names / sizeof names[0] ? names[i + 1] : NULL;
}

bool sim_breaks_sync(void) {
  return broken == BREAK_SYNC;
}

zps_err_t __real_zps_reduce(struct zps_reduce_scratch *scratch, const struct zps_slice_view *views, unsigned n_views,
                            enum zps_op op, enum zps_codec codec, struct zps_workpool *pool, void *out, uint32_t *nnz_p,
                            uint64_t *len_bytes_p);
zps_err_t __wrap_zps_reduce(struct zps_reduce_scratch *scratch, const struct zps_slice_view *views, unsigned n_views,
                            enum zps_op op, enum zps_codec codec, struct zps_workpool *pool, void *out, uint32_t *nnz_p,
                            uint64_t *len_bytes_p);
zps_err_t __wrap_zps_reduce(struct zps_reduce_scratch *scratch, const struct zps_slice_view *views, unsigned n_views,
                            enum zps_op op, enum zps_codec codec, struct zps_workpool *pool, void *out, uint32_t *nnz_p,
                            uint64_t *len_bytes_p) {
  struct zps_slice_view other[VIEWS_MAX];
  if (broken == BREAK_ORDER && n_views <= VIEWS_MAX) {
    for (unsigned i = 0; i < n_views; i++) other[i] = views[n_views - 1 - i];
    views = other;
  }
  if (broken == BREAK_MISSING && n_views > 1) n_views--;
  return __real_zps_reduce(scratch, views, n_views, op, codec, pool, out, nnz_p, len_bytes_p);
}

void __real_zps_replay_steps(struct zps_rounds *rounds, struct zps_job_steps *steps);
void __wrap_zps_replay_steps(struct zps_rounds *rounds, struct zps_job_steps *steps);
void __wrap_zps_replay_steps(struct zps_rounds *rounds, struct zps_job_steps *steps) {
  if (broken != BREAK_REPLAY) __real_zps_replay_steps(rounds, steps);
}

zps_err_t __real_zps_link_send(struct zps_link *link, struct zps_frame *frame);
zps_err_t __wrap_zps_link_send(struct zps_link *link, struct zps_frame *frame);
zps_err_t __wrap_zps_link_send(struct zps_link *link, struct zps_frame *frame) {
  if (broken == BREAK_FRAME && sim_chance(FRAMES_A_LOSS)) return ZPS_OK;
  if (broken == BREAK_DEAF && frame->header.type == ZPS_FRAME_ABORT && frame->u.abort.code == ZPS_ERR_CANCELED)
    return ZPS_OK;
  const bool is_server = strncmp(sim_process_here()->name, "server", 6) == 0;
  if (broken == BREAK_DECIDE && frame->header.type == ZPS_FRAME_CLOSED && !is_server) return ZPS_OK;
  return __real_zps_link_send(link, frame);
}

enum zps_link_verdict __real_zps_link_take(struct zps_link *link, const struct zps_frame_header *first,
                                           const void *message, size_t len);
enum zps_link_verdict __wrap_zps_link_take(struct zps_link *link, const struct zps_frame_header *first,
                                           const void *message, size_t len);
enum zps_link_verdict __wrap_zps_link_take(struct zps_link *link, const struct zps_frame_header *first,
                                           const void *message, size_t len) {
  const enum zps_link_verdict verdict = __real_zps_link_take(link, first, message, len);
  const bool is_again = verdict == ZPS_LINK_REPEATED && first->type != ZPS_FRAME_RESUME;
  return broken == BREAK_TWICE && is_again ? ZPS_LINK_READY : verdict;
}

bool __real_zps_early_put(struct zps_early *early, uint64_t seq, const void *bytes, size_t len);
bool __wrap_zps_early_put(struct zps_early *early, uint64_t seq, const void *bytes, size_t len);
bool __wrap_zps_early_put(struct zps_early *early, uint64_t seq, const void *bytes, size_t len) {
  return broken == BREAK_AHEAD || __real_zps_early_put(early, seq, bytes, len);
}

unsigned __real_zps_unacked_lose(struct zps_unacked *unacked, uint64_t expects, uint32_t early, uint64_t until);
unsigned __wrap_zps_unacked_lose(struct zps_unacked *unacked, uint64_t expects, uint32_t early, uint64_t until);
unsigned __wrap_zps_unacked_lose(struct zps_unacked *unacked, uint64_t expects, uint32_t early, uint64_t until) {
  const bool skips = broken == BREAK_RESEND;
  return __real_zps_unacked_lose(unacked, expects + skips, early >> skips, until);
}

zps_err_t __real_zps_shard_job_view(struct zps_shard *shard, const struct zps_job_view *message,
                                    struct zps_error *error);
zps_err_t __wrap_zps_shard_job_view(struct zps_shard *shard, const struct zps_job_view *message,
                                    struct zps_error *error);
zps_err_t __wrap_zps_shard_job_view(struct zps_shard *shard, const struct zps_job_view *message,
                                    struct zps_error *error) {
  return broken == BREAK_MAP ? ZPS_OK : __real_zps_shard_job_view(shard, message, error);
}

void __real_zps_owners_reassign(const uint32_t *owners, uint32_t n_parts, bool is_whole, uint32_t n_began,
                                uint32_t n_servers, const bool *lost, uint32_t *reassigned);
void __wrap_zps_owners_reassign(const uint32_t *owners, uint32_t n_parts, bool is_whole, uint32_t n_began,
                                uint32_t n_servers, const bool *lost, uint32_t *reassigned);
void __wrap_zps_owners_reassign(const uint32_t *owners, uint32_t n_parts, bool is_whole, uint32_t n_began,
                                uint32_t n_servers, const bool *lost, uint32_t *reassigned) {
  const bool is_server = strncmp(sim_process_here()->name, "server", 6) == 0;
  if (broken == BREAK_FREE && is_server) n_began = n_servers;
  __real_zps_owners_reassign(owners, n_parts, is_whole, n_began, n_servers, lost, reassigned);
}

void __real_zps_slab_put(struct zps_slab *slab, struct zps_buf *buf);
void __wrap_zps_slab_put(struct zps_slab *slab, struct zps_buf *buf);
void __wrap_zps_slab_put(struct zps_slab *slab, struct zps_buf *buf) {
  if (broken == BREAK_LEAK && sim_chance(PUTS_A_LEAK)) return;
  __real_zps_slab_put(slab, buf);
}

bool __real_zps_plan_agreement_end(struct zps_plan_agreement *agreement, struct zps_plan_schedule *schedule,
                                   const unsigned char *word);
bool __wrap_zps_plan_agreement_end(struct zps_plan_agreement *agreement, struct zps_plan_schedule *schedule,
                                   const unsigned char *word);
bool __wrap_zps_plan_agreement_end(struct zps_plan_agreement *agreement, struct zps_plan_schedule *schedule,
                                   const unsigned char *word) {
  const bool fits = __real_zps_plan_agreement_end(agreement, schedule, word);
  if (broken == BREAK_AGREE && !zps_plan_agreement_decides(agreement) && schedule->n > 0 &&
      sim_chance(WORDS_A_MISTAKE)) {
    struct zps_plan_run *const last = &schedule->runs[schedule->n - 1];
    last->scheme = last->scheme == ZPS_PLAN_BALANCED ? ZPS_PLAN_SPARSE_PS : ZPS_PLAN_BALANCED;
  }
  return fits;
}

void __real_zps_pick_start(struct zps_pick *pick);
void __wrap_zps_pick_start(struct zps_pick *pick);
void __wrap_zps_pick_start(struct zps_pick *pick) {
  if (broken == BREAK_PICK && pick->n_runs > 0) pick->n_rows -= pick->runs[--pick->n_runs].n;
  __real_zps_pick_start(pick);
}

void __real_zps_checks_read(struct zps_checks *checks, struct zps_bulk_peer *peer, struct zps_checked_read *read,
                            uint64_t sum);
void __wrap_zps_checks_read(struct zps_checks *checks, struct zps_bulk_peer *peer, struct zps_checked_read *read,
                            uint64_t sum);
void __wrap_zps_checks_read(struct zps_checks *checks, struct zps_bulk_peer *peer, struct zps_checked_read *read,
                            uint64_t sum) {
  __real_zps_checks_read(checks, peer, read, broken == BREAK_CHECKS ? 0 : sum);
}

void __real_zps_client_renew(struct zps_client *client);
void __wrap_zps_client_renew(struct zps_client *client);
void __wrap_zps_client_renew(struct zps_client *client) {
  if (broken != BREAK_MISSED) __real_zps_client_renew(client);
}

struct zps_unexpected_round *__real_zps_unexpected_take(struct zps_unexpected *unexpected, uint32_t tensor,
                                                        uint64_t step, bool *dropped_p);
struct zps_unexpected_round *__wrap_zps_unexpected_take(struct zps_unexpected *unexpected, uint32_t tensor,
                                                        uint64_t step, bool *dropped_p);
struct zps_unexpected_round *__wrap_zps_unexpected_take(struct zps_unexpected *unexpected, uint32_t tensor,
                                                        uint64_t step, bool *dropped_p) {
  struct zps_unexpected_round *const round = __real_zps_unexpected_take(unexpected, tensor, step, dropped_p);
  if (broken != BREAK_EARLY || !round) return round;
  zps_unexpected_round_free(round);
  return NULL;
}

zps_err_t __real_zps_compute_run(const struct zps_compute *compute, struct zps_compute_scratch *scratch,
                                 const struct zps_compute_task *task, void *out, struct zps_compute_out *out_p);
zps_err_t __wrap_zps_compute_run(const struct zps_compute *compute, struct zps_compute_scratch *scratch,
                                 const struct zps_compute_task *task, void *out, struct zps_compute_out *out_p);
zps_err_t __wrap_zps_compute_run(const struct zps_compute *compute, struct zps_compute_scratch *scratch,
                                 const struct zps_compute_task *task, void *out, struct zps_compute_out *out_p) {
  struct zps_compute_task other = *task;
  if (broken == BREAK_PART && other.instr.type == ZPS_INSTR_SUM && other.instr.n_in > 1 && sim_chance(SUMS_A_MISTAKE))
    other.instr.n_in--;
  return __real_zps_compute_run(compute, scratch, &other, out, out_p);
}

zps_err_t __real_zps_members_move_on(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                                     struct zps_error *error);
zps_err_t __wrap_zps_members_move_on(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                                     struct zps_error *error);
zps_err_t __wrap_zps_members_move_on(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                                     struct zps_error *error) {
  return (broken == BREAK_SEAT ? zps_members_leave : __real_zps_members_move_on)(members, client, job_id, error);
}

zps_json *__real_zps_control_next_write(const struct zps_next_spec *spec);
zps_json *__wrap_zps_control_next_write(const struct zps_next_spec *spec);
zps_json *__wrap_zps_control_next_write(const struct zps_next_spec *spec) {
  struct zps_next_spec other = *spec;
  if (broken == BREAK_STEP) other.step = 0;
  return __real_zps_control_next_write(&other);
}

bool __real_zps_quota_fits(const struct zps_job *job, uint64_t bytes, bool is_half);
bool __wrap_zps_quota_fits(const struct zps_job *job, uint64_t bytes, bool is_half);
bool __wrap_zps_quota_fits(const struct zps_job *job, uint64_t bytes, bool is_half) {
  for (const struct zps_job *other = job->shard->jobs; other && broken == BREAK_QUOTA; other = other->next)
    if (other != job) bytes += other->account->bytes;
  return __real_zps_quota_fits(job, bytes, is_half);
}

zps_err_t __real_zps_quota_take(struct zps_job *job, uint64_t bytes, const char *what, struct zps_error *error);
zps_err_t __wrap_zps_quota_take(struct zps_job *job, uint64_t bytes, const char *what, struct zps_error *error);
zps_err_t __wrap_zps_quota_take(struct zps_job *job, uint64_t bytes, const char *what, struct zps_error *error) {
  return __real_zps_quota_take(job, broken == BREAK_DEBT && sim_chance(PUTS_A_LEAK) ? bytes + 1 : bytes, what, error);
}

void __real_zps_store_append(struct zps_store *store, const char *text);
void __wrap_zps_store_append(struct zps_store *store, const char *text);
void __wrap_zps_store_append(struct zps_store *store, const char *text) {
  if (broken != BREAK_NOTE || text) __real_zps_store_append(store, text);
}

bool __real_zps_machine_leave_out(struct zps_shard_machine *machine, uint32_t rank, enum rank_flag why, uint64_t now_ns,
                                  struct zps_shard_machine_actions *actions);
bool __wrap_zps_machine_leave_out(struct zps_shard_machine *machine, uint32_t rank, enum rank_flag why, uint64_t now_ns,
                                  struct zps_shard_machine_actions *actions);
bool __wrap_zps_machine_leave_out(struct zps_shard_machine *machine, uint32_t rank, enum rank_flag why, uint64_t now_ns,
                                  struct zps_shard_machine_actions *actions) {
  const uint32_t quorum = machine->config.quorum;
  if (broken == BREAK_FEW && quorum > 0) machine->config.quorum = 1;
  const bool goes_on = __real_zps_machine_leave_out(machine, rank, why, now_ns, actions);
  machine->config.quorum = quorum;
  return goes_on;
}

/* The payload of another read, now and then. */
const void *__real_zps_segment_at(const struct zps_segment_view *view, uint64_t offset, uint64_t bytes);
const void *__wrap_zps_segment_at(const struct zps_segment_view *view, uint64_t offset, uint64_t bytes);
const void *__wrap_zps_segment_at(const struct zps_segment_view *view, uint64_t offset, uint64_t bytes) {
  static uint64_t last;
  if (broken != BREAK_SHARED || !sim_chance(READS_A_MISTAKE)) last = offset;
  return __real_zps_segment_at(view, last, bytes);
}

enum { JOBS_MAX = 16 };
static uint64_t jobs[JOBS_MAX];
static unsigned n_jobs;

zps_err_t __real_zps_shard_job_open(struct zps_shard *shard, const struct zps_job_spec *spec, struct zps_error *error);
zps_err_t __wrap_zps_shard_job_open(struct zps_shard *shard, const struct zps_job_spec *spec, struct zps_error *error);
zps_err_t __wrap_zps_shard_job_open(struct zps_shard *shard, const struct zps_job_spec *spec, struct zps_error *error) {
  jobs[n_jobs++ % JOBS_MAX] = spec->job_id;
  return __real_zps_shard_job_open(shard, spec, error);
}

zps_err_t __real_zps_shard_rank_gone(struct zps_shard *shard, uint64_t job_id, uint32_t rank, zps_err_t code,
                                     const char *text);
zps_err_t __wrap_zps_shard_rank_gone(struct zps_shard *shard, uint64_t job_id, uint32_t rank, zps_err_t code,
                                     const char *text);
zps_err_t __wrap_zps_shard_rank_gone(struct zps_shard *shard, uint64_t job_id, uint32_t rank, zps_err_t code,
                                     const char *text) {
  for (unsigned i = 0; broken == BREAK_MIXED && i < JOBS_MAX; i++)
    if (jobs[i] && jobs[i] != job_id && __real_zps_shard_rank_gone(shard, jobs[i], rank, code, text) != ZPS_OK)
      jobs[i] = 0; /* it is closed */
  return __real_zps_shard_rank_gone(shard, job_id, rank, code, text);
}
