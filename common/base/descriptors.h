/* How many files and connections this process may have open. */
#ifndef ZPS_BASE_DESCRIPTORS_H
#define ZPS_BASE_DESCRIPTORS_H

#define ZPS_DESCRIPTORS_ENOUGH 65536u

/* Raises the soft limit (RLIMIT_NOFILE), which is 1024 in most shells for the sake of programs that use select(), to
 * the hard one; but to no more than is ever enough here, as some programs look at every number below it. Processes
 * started from here have it, too. Returns the limit that holds now, 0 when it is not known. */
unsigned long zps_descriptors_raise(void);

/* Opens /dev/null for those of descriptors 0 to 2 that are closed. A program calls it before anything else, because the
 * first socket that it opens would become its stderr. */
void zps_descriptors_fill(void);

/* Pure: the soft limit to ask for, of the two that hold. */
unsigned long zps_descriptors_wanted(unsigned long soft, unsigned long hard);

#endif
