/* The options of one connection, complete: what the caller gave, then the environment, then defaults. */
#ifndef ZPS_WORKER_BASE_OPTIONS_H
#define ZPS_WORKER_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "zenps/zenps.h"

struct zps_worker_options {
  char *coordinator, *job, *provider, *interface, *subnet;
  char *host, *rack; /* where this rank is, for schemes that follow the topology; NULL: the host's name, none */
  char *token_file;  /* of the token that lets this rank into the job; NULL: none */
  char *tls_ca, *tls_cert, *tls_key, *tls_crl; /* to speak to the coordinator with; NULL: none */
  struct zps_tls *tls; /* made of these files (zps_membership_identify()); borrowed from the job's membership */
  bool encrypt;        /* the fabric */
  bool bbr;            /* TCP of provider tls */
  char *scheme;        /* of tensors that name none */
  char *auth_key_file; /* of the fabric's key; NULL: it has none */
  char *fault;         /* for tests */
  char *device_name, *device_library; /* texts of the options; device_name is a number, or NULL: none. device_library
                                         NULL: libzenps_cuda.so */
  int device;                         /* of the GPU; -1: none was named */
  const char *gpu_address;            /* of that GPU on PCI, borrowed; NULL: none is open */
  uint64_t rank, world;
  uint64_t min_world,
      max_world; /* of an elastic job, whose rank and world are wishes until it is open; 0: it is none */
  uint64_t join_wait_ms;
  uint64_t server_places; /* 0: as the coordinator is set up */
  uint64_t local_world;   /* ranks on this host: they share its cores */
  uint64_t local_rank;    /* among them; 0 too where nothing tells */
  uint64_t threads;
  uint64_t join_timeout_ms, round_timeout_ms;
  uint64_t rails;               /* network cards that gradients come over */
  uint64_t connections;         /* TCP connections to a server; of provider tls */
  uint64_t keepalive_ms;        /* of the fabric's TCP connections; 0: none */
  uint64_t refused_timeout_ms;  /* until nobody is expected to come to listen at an address of this host */
  uint64_t telemetry_ms;        /* between reports of rounds to the coordinator; 0: none */
  uint64_t memory_limit_bytes;  /* of registered buffers */
  uint64_t replay_memory_bytes; /* of them, for pushes that are kept in case a server is lost */
  bool shared_memory;           /* with other ranks of this host */
  int codec;                    /* of tensors that name none: enum zps_codec_policy, less 1 */
  int values;                   /* of tensors that name none: enum zps_value_codec, less 1 */
  int profile;                  /* index into zps_profile_names */
  int log_level;
  zenps_log_fn log;
  void *log_ctx;
};

/* `given` may be NULL. On failure there is nothing to free. */
zps_err_t zps_worker_options_load(const zenps_options_t *given, struct zps_worker_options *options,
                                  struct zps_error *error) ZPS_MUSTCHECK;
void zps_worker_options_fini(struct zps_worker_options *options);
/* zps_config_profile_text() of these options. */
bool zps_worker_options_profile(const struct zps_worker_options *options, char *text, size_t size);
/* Hands them over; `from` has none then, and need not be freed. */
void zps_worker_options_move(struct zps_worker_options *to, struct zps_worker_options *from);

/* Copies a size-prefixed struct of the caller's, which may be of an older or a newer header than this library: members
 * that the caller's header lacks keep the value they have in `to`; members that this library does not know must be
 * zero. `what` names it in errors. */
zps_err_t zps_worker_struct_copy(void *to, size_t to_size, const void *from, const char *what,
                                 struct zps_error *error) ZPS_MUSTCHECK;

#endif
