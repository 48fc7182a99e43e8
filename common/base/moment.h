/*
 * Moments: points of the code, each with a name, at which tests/chaos lets a process die or stop. They are nothing, but
 * in programs that tests/chaos builds with ZPS_MOMENTS; those that are installed have none.
 */
#ifndef ZPS_BASE_MOMENT_H
#define ZPS_BASE_MOMENT_H

#ifdef ZPS_MOMENTS
/* From any thread. tests/chaos/moment.c has it. */
void zps_moment(const char *name);
#define ZPS_MOMENT(name) zps_moment(name)
#else
#define ZPS_MOMENT(name) ((void)0)
#endif

#endif
