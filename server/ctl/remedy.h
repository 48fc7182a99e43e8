/* What an operator does about an error, by its code. */
#ifndef ZPS_SERVER_CTL_REMEDY_H
#define ZPS_SERVER_CTL_REMEDY_H

/* `code`: a name such as "ERR_MISSING". Never NULL: of an unknown code it is where to look. */
const char *zps_ctl_remedy(const char *code);

#endif
