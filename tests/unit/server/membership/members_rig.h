/* The membership module with eight clients, and the actions that it asks for. */
#ifndef ZPS_TESTS_SERVER_MEMBERSHIP_MEMBERS_RIG_H
#define ZPS_TESTS_SERVER_MEMBERSHIP_MEMBERS_RIG_H

#include "common/base/clock.h"
#include "server/membership/members.h"
#include "tests/support/settled.h"

enum { MEMBERS_CLIENTS = 8, MEMBERS_ACTS_MAX = 128 };
#define MEMBERS_LEAVE_GRACE_NS (4 * ZPS_NS_PER_S)

struct members_seen {
  struct zps_action action;
  char text[512];
  uint32_t owners0, n_parts;
};

extern struct members_rig {
  struct zps_members *members;
  struct zps_member_client clients[MEMBERS_CLIENTS]; /* 0 and 1: servers "a", "b"; the others: workers */
  struct members_seen seen[MEMBERS_ACTS_MAX];
  unsigned n_seen;
  uint64_t random;
  uint64_t now_ns;        /* When ranks join. */
  struct zps_error error; /* of the last call */
  struct {
    struct zps_scheme_spec scheme;
    const uint32_t *ranks;
    uint32_t n_ranks;
    enum zps_codec_policy codec;
    enum zps_value_codec value_codec;
    uint32_t staleness;
    const char *group;
  } tensor; /* the members of members_tensor()'s request beside its arguments */
} rig;

extern const struct zps_net_info members_tcp, members_net, members_verbs;

/* Of each case. */
int members_setup(void **state);
int members_setup_noted(void (*on_note)(void *ctx, const struct zps_member_note *note));
int members_teardown(void **state);
#define MEMBERS_CASE(test) cmocka_unit_test_setup_teardown(test, members_setup, members_teardown)

zps_err_t members_server(unsigned client, const char *name, uint32_t pid, const struct zps_net_info *fabric);
zps_err_t members_join(unsigned client, const char *job, uint32_t rank, uint32_t world,
                       const struct zps_net_info *fabric);
/* Servers a and b, and job "x" of ranks 0 to world - 1 (client 2 and so on), running. */
uint64_t members_running_world(uint32_t world);
/* The rank opens a group of these ranks, which ascend; its time is up 1.5 s after `now_ns`. */
zps_err_t members_group(unsigned client, uint64_t job_id, const char *name, const uint32_t *ranks, uint32_t n_ranks,
                        uint64_t now_ns);
/* The server's answer; a code other than ZPS_OK comes with the text "it has no room". */
void members_opened(unsigned server, uint64_t job_id, zps_err_t code);
/* Servers a and b, and job "x" of the two ranks 0 (client 2) and 1 (client 3), running. */
uint64_t members_running_job(void);
zps_err_t members_tensor(unsigned client, uint64_t job_id, const char *name, uint64_t rows, uint32_t parts);
/* malloc'd: the positions of places in one of the states with bits `1u << state`. */
uint32_t *members_positions(const struct zps_view *view, unsigned states, uint32_t *n_p);
/* How many actions of this type went to this client; the last one is left in *last_p. */
unsigned members_count(enum zps_action_type type, unsigned client, const struct members_seen **last_p);

#endif
