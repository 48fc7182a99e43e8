/*
 * Faults of a caller of libfabric, planted into common/net/ofi where a test compiles these files with -include of this
 * header. ZPS_PLANT names the fault of a run. Without it the calls are as they were.
 */
#ifndef ZPS_TESTS_DOUBLE_PLANT_H
#define ZPS_TESTS_DOUBLE_PLANT_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

int planted_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                    const struct fi_info *hints, struct fi_info **list_p);
int planted_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric_p, void *context);
int planted_enable(struct fid_ep *ep);
int planted_mr_reg(struct fid_domain *domain, const void *buf, size_t len, uint64_t access, uint64_t offset,
                   uint64_t key, uint64_t flags, struct fid_mr **mr_p, void *context);
void *planted_mr_desc(struct fid_mr *mr);
int planted_mr_enable(struct fid_mr *mr);
int planted_close(struct fid *fid);
ssize_t planted_trecv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t tag,
                      uint64_t ignore, void *context);
ssize_t planted_tsend(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag,
                      void *context);
ssize_t planted_read(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t addr, uint64_t key,
                     void *context);
ssize_t planted_cq_read(struct fid_cq *cq, void *entries, size_t count);

#define fi_getinfo planted_getinfo
#define fi_fabric planted_fabric
#define fi_enable planted_enable
#define fi_mr_reg planted_mr_reg
#define fi_mr_desc planted_mr_desc
#define fi_mr_enable planted_mr_enable
#define fi_close planted_close
#define fi_trecv planted_trecv
#define fi_tsend planted_tsend
#define fi_read planted_read
#define fi_cq_read planted_cq_read

#endif
