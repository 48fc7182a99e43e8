#include "worker/schemes/peer_scheme.h"

#include <string.h>

const struct zps_peer_scheme *zps_peer_scheme_find(const char *name) {
  static const struct zps_peer_scheme *const schemes[] = {
      &zps_peer_recursive_doubling,
      &zps_peer_split_allgather,
      &zps_peer_dsar,
      &zps_peer_dense_split,
      &zps_peer_bitmap_split,
      &zps_peer_agsparse,
      &zps_peer_ring,
      &zps_peer_rabenseifner,
      &zps_peer_two_level,
      &zps_peer_blueconnect,
      &zps_peer_hierarchical,
      &zps_peer_oktopk,
      &zps_peer_gtopk,
      &zps_peer_topka,
      &zps_peer_topkdsa,
      &zps_peer_gaussiank,
  };
  for (unsigned i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
    if (strcmp(schemes[i]->name, name) == 0) return schemes[i];
  }
  return NULL;
}
