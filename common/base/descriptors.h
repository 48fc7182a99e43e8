/* How many files and connections this process may have open. */
#ifndef ZPS_BASE_DESCRIPTORS_H
#define ZPS_BASE_DESCRIPTORS_H

#define ZPS_DESCRIPTORS_ENOUGH 65536u

/* Raises the soft limit (RLIMIT_NOFILE), which is 1024 in most shells for the sake of programs that use select(), to
 * the hard one; but to no more than is ever enough here, as some programs look at every number below it. Processes
 * started from here have it, too. Returns the limit that holds now, 0 when it is not known. */
unsigned long zps_descriptors_raise(void);

/* Pure: the soft limit to ask for, of the two that hold. */
unsigned long zps_descriptors_wanted(unsigned long soft, unsigned long hard);

#endif
