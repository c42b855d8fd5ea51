"""Certificates and keys for Flower: a certificate authority and a server certificate, and a key pair for each node."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairlead.core import require

DAYS = 365


def write_certificates(folder: Path, hosts: Sequence[str], days: int = DAYS) -> None:
    """A certificate authority (ca.key, ca.pem) and a certificate for the server's names (server.key, server.pem)."""
    require(bool(hosts), "no host given; the certificate is for the names by which sites reach the server")
    names = [_host(h) for h in hosts]
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Fairlead study")])
    own = _certificate(issuer, issuer, authority, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), True
    )
    own = own.add_extension(_usage(signs=True), True)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])  # sites look at the names below
    named = _certificate(subject, issuer, server, days).add_extension(x509.BasicConstraints(False, None), True)
    named = named.add_extension(x509.SubjectAlternativeName(names), critical=False)
    named = named.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    named = named.add_extension(identifier, critical=False)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(folder / "ca.key", _pem(authority))
    _write(folder / "server.key", _pem(server))
    for name, built in (("ca", own), ("server", named)):
        signed = built.sign(authority, hashes.SHA384())
        (folder / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def write_key(path: Path) -> None:
    """A node's key pair, as ssh-keygen writes it: PATH stays at the site, PATH.pub goes to the coordinator."""
    require(not path.exists(), f"{path} exists; a key is not overwritten")
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=5))
    made = made.not_valid_after(now + datetime.timedelta(days=days))
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(signs: bool) -> x509.KeyUsage:
    off = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    return x509.KeyUsage(digital_signature=False, key_cert_sign=signs, crl_sign=signs, decipher_only=False, **off)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        plain = re.fullmatch(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*", name) is not None and len(name) < 254
        require(plain, f"host '{name[:80]}' is no address and no name of a machine, such as study.example.org")
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    """A file that its owner alone can read, from the first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
