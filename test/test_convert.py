"""Pictures of one's own: finding records in damaged files, converting folders and lists, verifying, training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import photos
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from Datasets import _checksums, _salvage
from Datasets._salvage import Damage, Record

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


# --- Records in damaged files ----------------------------------------------------------------------------------


def framed(payload: bytes) -> bytes:
    header = len(payload).to_bytes(8, "little")
    return header + b"".join(
        (_checksums.masked(header).to_bytes(4, "little"), payload, _checksums.masked(payload).to_bytes(4, "little"))
    )


def found_payloads(file: Path, **options) -> list[bytes]:
    content = file.read_bytes()
    return [content[at : at + length] for at, length in _salvage.records(_salvage.walk(file, **options))]


def test_checksums_are_those_of_the_standard_and_of_tensorflow(tmp_path):
    unmasked = (_checksums.masked(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert ((unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF) == 0xE3069283  # the check value of CRC-32C
    random = np.random.default_rng(3)
    payloads = [random.bytes(n) for n in (0, 1, 3, 4, 5, 511, 512, 513, 1024, 5000, 100_000, 1_300_001)]
    (file,) = photos.write_shards(tmp_path, "train", payloads, 1)
    assert file.read_bytes() == b"".join(map(framed, payloads))
    assert found_payloads(file) == found_payloads(file, payloads=True) == payloads
    assert all(_checksums.masked_header(p) == _checksums.masked(p) for p in payloads[:9])


@st.composite
def damaged(draw) -> tuple[list[bytes], bytes, list[bool]]:
    """Payloads, a file of them in which one stretch was changed, and which records the change left alone."""
    unique = {"unique": True} if draw(st.booleans()) else {}
    payloads = draw(
        st.lists(st.binary(max_size=40) | st.binary(min_size=600, max_size=700), min_size=1, max_size=8, **unique)
    )
    whole = b"".join(map(framed, payloads))
    start = draw(st.integers(0, len(whole)))
    end = draw(st.sampled_from([start, min(start + 1, len(whole)), len(whole)]) | st.integers(start, len(whole)))
    inserted = draw(st.binary(max_size=30))
    ends = np.cumsum([len(framed(payload)) for payload in payloads])
    untouched = [e <= start or e - len(framed(p)) >= end for p, e in zip(payloads, ends, strict=True)]
    return payloads, whole[:start] + inserted + whole[end:], untouched


@QUIET
@given(damaged())
def test_every_record_that_damage_left_alone_is_found(tmp_path, case):
    payloads, content, untouched = case
    file = tmp_path / "train-00000-of-00001"
    file.write_bytes(content)
    checked = found_payloads(file, payloads=True)
    assert set(checked) <= set(payloads)
    remaining = iter(checked)
    assert all(payload in remaining for payload, whole in zip(payloads, untouched, strict=True) if whole)  # in this order
    quick = _salvage.walk(file)
    assert [stretch.offset for stretch in quick] == sorted(stretch.offset for stretch in quick)


@QUIET
@given(st.binary(max_size=3000))
def test_no_file_is_too_strange_to_walk(tmp_path, content):
    file = tmp_path / "strange"
    file.write_bytes(content)
    assert all(isinstance(stretch, Damage) for stretch in _salvage.walk(file)) and bool(_salvage.walk(file)) == bool(content)


def test_lengths_alone_lead_past_every_kind_of_damage(tmp_path):
    payloads = [bytes([65 + i]) * (700 + i) for i in range(5)]
    parts = [framed(payload) for payload in payloads]
    file = tmp_path / "train-00000-of-00001"

    def walked(*changed: bytes) -> list[Record | Damage]:
        file.write_bytes(b"".join(changed))
        return _salvage.walk(file)

    others = [payloads[0], *payloads[2:]]
    at = len(parts[0])
    for spoilt, reason in (
        (b"\xff" + parts[1][1:], _salvage.WRONG_LENGTH),
        (parts[1][:300] + parts[1][310:], _salvage.WRONG_PAYLOAD),  # leads into the next record
        (parts[1][:300] + b"more" + parts[1][300:], _salvage.WRONG_PAYLOAD),
        (b"rubbish between records", _salvage.WRONG_LENGTH),
    ):
        assert [s for s in walked(parts[0], spoilt, *parts[2:]) if isinstance(s, Damage)] == [Damage(at, reason)]
        assert found_payloads(file) == others
    assert walked(parts[0], parts[1][:-1]) == [Record(12, 700), Damage(at, _salvage.CUT.format(size=at + len(parts[1]) - 1))]
    assert walked(parts[0], b"\x01" + parts[1][1:], parts[2][:-9])[1:] == [
        Damage(at, _salvage.WRONG_LENGTH),
        Damage(at + len(parts[1]), _salvage.CUT.format(size=file.stat().st_size)),
    ]
    flipped = parts[1][:50] + b"?" + parts[1][51:]
    assert len(_salvage.records(walked(parts[0], flipped, parts[2]))) == 3  # no length is wrong
    assert _salvage.walk(file, payloads=True)[1] == Damage(at, _salvage.WRONG_PAYLOAD)
