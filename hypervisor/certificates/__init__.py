"""Certificates for a fleet of plain hosts: an authority of its own, and one certificate for each who connects.

The only room that makes keys and signatures. Everything lies in one directory, which stays with whoever runs the fleet;
what a host needs is a folder of three files below it, named as a Secret of type kubernetes.io/tls names them:

    DIR/ca.crt, ca.key                        the authority; ca.key never leaves
    DIR/aggregator/NAME, nodes/NAME, readers/NAME   each with ca.crt, tls.crt, tls.key
"""

from hypervisor.certificates.authority import Authority, CertificatesError, Issued

__all__ = ["Authority", "CertificatesError", "Issued"]
