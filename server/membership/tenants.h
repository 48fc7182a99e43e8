/* What one tenant may have of the jobs that there can be. A tenant is who a client's certificate, token, or else
 * address says that it is (struct zps_member_client). Pure, as all of membership. */
#ifndef ZPS_SERVER_MEMBERSHIP_TENANTS_H
#define ZPS_SERVER_MEMBERSHIP_TENANTS_H

#include "server/membership/members_impl.h"

/* Whether the client's tenant may have one more job, which waits for its ranks at first: `members->config.max_waiting`
 * such jobs, and where the tenant has a share, half of the jobs that others leave. ZPS_ERR_QUOTA: it may not. */
zps_err_t zps_members_tenant_may_begin(const struct zps_members *members, const struct zps_member_client *client,
                                       const char *job, struct zps_error *error) ZPS_MUSTCHECK;

#endif
