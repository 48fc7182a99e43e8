/*
 * Signal handlers stay the program's, although libfabric brings its own along.
 *
 * Debian's libfabric needs libinfinipath, whose constructor installs handlers for SIGINT, SIGILL, SIGABRT, SIGBUS,
 * SIGSEGV and SIGTERM that end the process with status 1 (and leave a .btr file behind), over those that the program
 * may have. Only IPATH_NO_BACKTRACE in the environment before it is loaded stops it, which a library comes too late
 * for. So the handlers that were there before are saved in time and put back where such a library has changed them: by
 * the object itself when it is loaded (signals.c says how), and by zps_ofi_signals_save() and _restore() around calls
 * that start providers.
 *
 * A signal that comes in the 0.1 s of that load finds their handler. The shm provider takes signals in order to remove
 * its files in /dev/shm; a process that one of them ends now leaves these behind, as SIGKILL does.
 *
 * A handler is replaced only if it lies in libfabric or in a library that libfabric is known to need: those of the
 * program and of other libraries, loaded at the same time or not, are left alone.
 */
#ifndef ZPS_NET_OFI_SIGNALS_H
#define ZPS_NET_OFI_SIGNALS_H

#include <signal.h>

struct zps_ofi_signals {
  struct sigaction actions[_NSIG]; /* by the signal's number */
};

void zps_ofi_signals_save(struct zps_ofi_signals *signals);
void zps_ofi_signals_restore(const struct zps_ofi_signals *signals);

#endif
