/* Versions of the protocol (proto/PROTOCOL.md), raised with every change that an older peer would misread: of the
 * control plane, which `hello` refuses others of, and of frames, each of which says its own. */
#ifndef ZPS_BASE_VERSION_H
#define ZPS_BASE_VERSION_H

#define ZPS_PROTOCOL_VERSION 2u

#endif
