#include "server/ctl/remedy.h"

#include <stddef.h>
#include <string.h>

/* deploy/guide/troubleshooting.md has a paragraph for each code. */
static const struct {
  const char *code, *remedy;
} remedies[] = {
    {"ERR_AGAIN", "the sentence names the limit that is reached: raise it, or start fewer at once"},
    {"ERR_INVALID", "correct the argument, option or variable that the sentence names, and start the job again"},
    {"ERR_NOMEM",
     "give the named server or rank more memory: raise server.memory_limit, add servers (zenpsctl rebalance), or use "
     "fewer steps in flight"},
    {"ERR_TIMEOUT",
     "read the logs of the ranks that the sentence names; ZENPS_ROUND_TIMEOUT sets the deadline of rounds"},
    {"ERR_CANCELED", "a program or a signal ended it on purpose; read the log of the rank that the sentence names"},
    {"ERR_CLOSED",
     "read the log of the rank that left first; ranks that call zenps_barrier() before they leave avoid it"},
    {"ERR_CONNECT", "check the address (ZENPS_COORDINATOR), the firewall, and that the process there runs"},
    {"ERR_REFUSED", "mend what the sentence names: a certificate, a token, a role, a kick or a drain"},
    {"ERR_VERSION",
     "run the same release everywhere: zenpsctl members shows the versions of members (VERSION), zenpsctl version the "
     "coordinator's; the sentence names the other one"},
    {"ERR_PROTOCOL",
     "run the same release everywhere; if it is the same, look for broken memory or cards, and report it"},
    {"ERR_SHAPE", "make equal on all ranks what the sentence names: it has both ranks and what each said"},
    {"ERR_UNKNOWN",
     "start the job again; set coordinator.state_dir, so that jobs survive a restart of the coordinator"},
    {"ERR_RANK_TAKEN", "two launches use one job name: set ZENPS_JOB, or end the other one"},
    {"ERR_MISSING",
     "read the logs of the ranks that the sentence names: each of them failed first, or does not call; zenpsctl "
     "members "
     "shows whether its process is there, and py-spy dump or gdb its stack"},
    {"ERR_PEER_LOST",
     "read that rank's log, and dmesg on its host for an end by lack of memory; an elastic job goes on without it"},
    {"ERR_SERVER_LOST",
     "read that server's log (journalctl -u zenpsd) and dmesg on its host; run two servers at least, with "
     "coordinator.server_loss = replay"},
    {"ERR_STALE", "pull sooner after the push, or start the job again if the coordinator has lost its state"},
    {"ERR_TRUNCATED", "give larger arrays (zenps_request_fetch()), or let zenps own the result"},
    {"ERR_UNSUPPORTED", "choose a scheme, type or device that can: the sentence says what is missing"},
    {"ERR_IO", "mend the file, socket or disk that the sentence names"},
    {"ERR_FABRIC",
     "check fabric.provider (ZENPS_PROVIDER) and fabric.interface; zenpsd --list-providers shows the host's"},
    {"ERR_FORKED", "open the job after fork(), or start data loaders by spawn"},
    {"ERR_BUSY", "wait for the operation in flight, or use another step, port or folder"},
    {"ERR_INTERNAL", "report the sentence and that rank's log: it is a fault of zenps"},
    {"ERR_QUOTA",
     "raise the limit that the sentence names (job.max_tensors, job.max_memory, job.max_rounds, "
     "job.max_waiting), or ask for less"},
    {"ERR_TRAINER", "mend the trainer: the sentence is its own error, and that rank's output has its stack"},
};

const char *zps_ctl_remedy(const char *code) {
  for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++)
    if (strcmp(remedies[i].code, code) == 0) return remedies[i].remedy;
  return "read the ranks' logs";
}
