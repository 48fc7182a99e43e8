/* Connections that end. A client whose process may live is away: nothing is sent to it until it is back over another
 * connection. It is lost when its time is up. */
#include "server/membership/members_impl.h"

void zps_members_client_lost(struct zps_members *members, struct zps_member_client *client, const char *reason) {
  if (client->server) zps_members_server_lost(members, client->server, reason);
  if (client->asker) zps_members_asker_gone(members, client->asker, true);
  if (client->job) zps_members_rank_lost(members, client->job, client->job->ranks[client->rank], reason);
}

void zps_members_client_away(struct zps_members *members, struct zps_member_client *client, uint64_t until_ns,
                             const char *reason) {
  struct zps_member_job *const job = client->job;
  struct zps_member_rank *const rank = job ? job->ranks[client->rank] : NULL;
  if ((client->server && !client->server->secret) || (rank && (rank->state != ZPS_RANK_IN || !rank->secret))) {
    zps_members_client_lost(members, client, reason);
    return;
  }
  if (client->asker) zps_members_asker_gone(members, client->asker, false);
  if (client->server) zps_members_server_away(members, client->server, until_ns, reason);
  if (rank) zps_members_rank_away(members, job, rank, until_ns, reason);
}

/* Whether there was one: members may be others then. */
static bool lose_one(struct zps_members *members, uint64_t *deadline_ns) {
  static const char late[] = "it did not come back in time";
  *deadline_ns = ZPS_NEVER;
  for (unsigned i = 0; i < members->n_servers; i++) {
    struct zps_member_server *const server = members->servers[i];
    if (server->client || !zps_members_is_due(server->until_ns, members->now_ns, deadline_ns)) continue;
    zps_members_server_lost(members, server, late);
    return true;
  }
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    for (uint32_t r = 0; job->state >= ZPS_JOB_RUNNING && r < job->world; r++) {
      struct zps_member_rank *const rank = job->ranks[r];
      if (rank->state != ZPS_RANK_IN || rank->client ||
          !zps_members_is_due(rank->until_ns, members->now_ns, deadline_ns))
        continue;
      zps_members_rank_lost(members, job, rank, late);
      return true;
    }
  }
  return false;
}

uint64_t zps_members_connections_expire(struct zps_members *members) {
  uint64_t deadline_ns = ZPS_NEVER;
  while (members->n_away > 0 && lose_one(members, &deadline_ns)) continue;
  return deadline_ns;
}
