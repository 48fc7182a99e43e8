/* Membership that is made again from records, its servers and ranks that come back, and what it notes and asks for. */
#ifndef ZPS_TESTS_SERVER_COORDINATOR_RESTORED_H
#define ZPS_TESTS_SERVER_COORDINATOR_RESTORED_H

#include "server/coordinator/records.h"
#include "tests/support/settled.h"

enum { RECORDS = 64, JOB = 1 };
#define RESTORED_UTC_MS UINT64_C(1717210300000)

/* restored_teardown() sets them to 64, 5 ns and 0 again. */
extern uint32_t restored_max_tensors;
extern uint64_t restored_now_ns, restored_leave_grace_ms; /* The time of the new start. */

extern struct restored {
  char *notes[RECORDS];
  unsigned n_notes;
  unsigned acts[ZPS_ACT_TENSOR_PLAN + 1];
  uint32_t steps; /* steps that the last rank was to replay */
} restored;

/* Records: a server, and a rank of a job. */
#define FABRIC                                                                                                   \
  "\"fabric\":{\"provider\":\"tcp\",\"protocol\":\"\",\"addr_format\":\"f\",\"domain\":\"\",\"address\":\"01\"," \
  "\"printable\":\"\"}"
#define SERVER(number, name)                                                                                           \
  "{\"what\":\"server\",\"server\":" number ",\"name\":\"" name "\",\"host\":\"h\",\"pid\":1,\"secret\":\"0x10" number \
  "\"," FABRIC "}"
#define RANK(number) \
  "{\"state\":\"in\",\"host\":\"h\",\"rack\":\"\",\"pid\":1,\"secret\":\"0x20" number "\"," FABRIC "}"

#define RANK_GONE(number) \
  "{\"state\":\"left\",\"host\":\"h\",\"rack\":\"\",\"pid\":1,\"secret\":\"0x20" number "\"," FABRIC "}"
/* Of two ranks, which are in it. */
#define JOB_OF(servers)                                                                                             \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,\"servers\":" \
  "[" servers "],\"ranks\":[" RANK("0") "," RANK("1") "]}"

struct zps_members *restored_make(bool replays);
/* From records, and nobody is back yet. */
struct zps_members *restored_make_again(bool replays, const char *const *lines, unsigned n);
/* The records of another start: given ones, and the notes from `first` on, which are restored.notes no longer. */
struct restored_journal {
  const char *lines[RECORDS];
  char *notes[RECORDS];
  unsigned n, n_notes;
};
void restored_journal_take(struct restored_journal *journal, const char *const *lines, unsigned n, unsigned first);
/* Starts from the journal, and frees its notes. */
struct zps_members *restored_from(bool replays, struct restored_journal *journal);
/* Starts from a compacted journal of `members`, whose clients are lost. */
struct zps_members *restored_compact(struct zps_members *members, struct zps_member_client *clients, unsigned n);
const struct zps_member_job *restored_job(const struct zps_members *members); /* the first */
void restored_server_back(struct zps_members *members, struct zps_member_client *client, const char *name,
                          uint64_t secret);
void restored_rank_back(struct zps_members *members, struct zps_member_client *client, uint32_t rank);
/* All clients are lost, and the module ends. */
void restored_leave(struct zps_members *members, struct zps_member_client *clients, unsigned n);

int restored_teardown(void **state); /* of each test */
void restored_log(void);             /* errors fail the test */

#endif
