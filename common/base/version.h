/* The protocol's version: one number for frames and control-plane methods. Raised with every change that an older peer
 * would misread. */
#ifndef ZPS_BASE_VERSION_H
#define ZPS_BASE_VERSION_H

#define ZPS_PROTOCOL_VERSION 1u

#endif
