#include "worker/schemes/peer_scheme.h"

const struct zps_peer_scheme *zps_peer_scheme_find(const char *name) {
  static const struct zps_peer_scheme *const schemes[ZPS_PLAN_SCHEMES + 1] = {
      [ZPS_PLAN_RECURSIVE_DOUBLING] = &zps_peer_recursive_doubling,
      [ZPS_PLAN_SPLIT_ALLGATHER] = &zps_peer_split_allgather,
      [ZPS_PLAN_DSAR] = &zps_peer_dsar,
      [ZPS_PLAN_AGSPARSE] = &zps_peer_agsparse,
      [ZPS_PLAN_RING] = &zps_peer_ring,
      [ZPS_PLAN_RABENSEIFNER] = &zps_peer_rabenseifner,
      [ZPS_PLAN_TWO_LEVEL] = &zps_peer_two_level,
      [ZPS_PLAN_BLUECONNECT] = &zps_peer_blueconnect,
      [ZPS_PLAN_OKTOPK] = &zps_peer_oktopk,
      [ZPS_PLAN_GTOPK] = &zps_peer_gtopk,
      [ZPS_PLAN_TOPKA] = &zps_peer_topka,
      [ZPS_PLAN_TOPKDSA] = &zps_peer_topkdsa,
      [ZPS_PLAN_GAUSSIANK] = &zps_peer_gaussiank,
      [ZPS_PLAN_HIERARCHICAL] = &zps_peer_hierarchical,
      [ZPS_PLAN_DENSE_SPLIT] = &zps_peer_dense_split,
      [ZPS_PLAN_BITMAP_SPLIT] = &zps_peer_bitmap_split,
  };
  enum zps_plan_scheme number;
  return zps_plan_scheme_parse(name, &number) ? schemes[number] : NULL;
}
