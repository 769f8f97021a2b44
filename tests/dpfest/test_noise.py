"""The key and its keystreams: AES-256 in counter mode, one stream a purpose and step, and nothing printed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from dpfest.errors import UserError
from dpfest.noise import chacha
from dpfest.noise.key import AES, CHACHA, CIPHERS, NoiseKey, default_cipher
from dpfest.noise.keystream import Keystream
from tests.dpfest import placed

FALSE_ALARM = 1e-4


def test_words_are_the_published_cipher() -> None:
    """NIST SP 800-38A, F.5.5: AES-256 in counter mode under the same key; and blocks encrypted one by one."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    assert cipher.update(bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")).hex() == "0bdf7df1591716335e9a8b15c860c502"
    blocks = b"".join(cipher.update(number.to_bytes(16, "big")) for number in range(50))
    assert np.array_equal(Keystream(key).words(100), np.frombuffer(blocks, dtype="<u8"))


@pytest.mark.usefixtures("loops")
def test_a_block_is_that_of_the_standard() -> None:
    """RFC 8439, section 2.3.2; and 300 random keys, counters and nonces against another implementation."""
    nonce, key = bytes.fromhex("000000090000004a00000000"), bytes(range(32))
    first, second = np.frombuffer((1).to_bytes(4, "little") + nonce, dtype="<u8").tolist()
    found = chacha.blocks(key, np.array([first], dtype=np.uint64), second)
    assert found.tobytes().hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    generator = np.random.default_rng(0)
    for blocks in (1, 15, 17, 33, 234):
        key, inputs = generator.bytes(32), generator.integers(0, 2**64, (2, blocks), dtype=np.uint64)
        want = np.array([placed.block(key, *(int(word) for word in pair.view("<u4"))) for pair in inputs.T.copy()])
        assert np.array_equal(chacha.blocks(key, *inputs), want.reshape(-1))
        by_pair = chacha.blocks(key, *inputs, by_pair=True).reshape(2, 4, blocks)
        assert np.array_equal(by_pair, want.reshape(blocks, 4, 2).transpose(2, 1, 0))


@pytest.mark.usefixtures("loops")
def test_words_of_chacha20_are_its_blocks_in_order() -> None:
    stream, key = NoiseKey.from_seed(1, cipher=CHACHA).stream("x", 5), NoiseKey.from_seed(1)
    secret = placed.stream_key(key, "x", 5)
    want = np.concatenate([placed.block(secret, number, 0, 0, 0) for number in range(20)])
    assert np.array_equal(stream.words(3), want[:3]) and np.array_equal(stream.words(20), want[8:28])
    assert stream.position == 32 and np.array_equal(stream.at(32, 100), want[32:132])
    for position in (0, 9, 63):
        more = placed.block(secret, position // 8, 0, 0, 1 + position % 8).tolist()
        assert stream.extended(int(want[position]), position) == int(want[position]) << 128 | more[0] << 64 | more[1]


@pytest.mark.parametrize("cipher", CIPHERS)
def test_words_are_found_by_their_number(cipher: str) -> None:
    key = NoiseKey.from_seed(1, cipher=cipher)
    block = 2 if cipher == AES else 8
    whole = key.stream("x").words(100_000)
    stream = key.stream("x")
    assert np.array_equal(np.concatenate([stream.words(n) for n in (16, 0, 88, 40_000)]), whole[:40_104])
    assert np.array_equal(stream.at(60_000, 7), whole[60_000:60_007])
    odd = key.stream("x")
    assert np.array_equal(odd.words(3), whole[:3]) and np.array_equal(odd.words(2), whole[3 + -3 % block :][:2])


@pytest.mark.parametrize("cipher", CIPHERS)
def test_extensions_are_bits_of_their_own(cipher: str) -> None:
    key = NoiseKey.from_seed(1, cipher=cipher)
    stream, words = key.stream("x"), key.stream("x").words(2000)
    extended = [stream.extended(int(word), place) for place, word in enumerate(words[:1000])]
    assert [number >> 128 for number in extended] == words[:1000].tolist()
    below = np.array([[number >> 64 & (2**64 - 1), number & (2**64 - 1)] for number in extended], dtype=np.uint64)
    assert len(np.unique(np.concatenate([below.ravel(), words]))) == 4000
    assert stats.kstest(below.ravel() / 2.0**64, "uniform").pvalue > FALSE_ALARM
    assert stream.extended(-1, 5) >> 128 == -1, "signed words keep their sign"


@pytest.mark.parametrize("cipher", CIPHERS)
def test_bits_are_even_and_streams_are_distinct(cipher: str) -> None:
    key, size = NoiseKey.from_seed(1, cipher=cipher), 50_000
    streams = [
        key.stream("rows").words(size),
        key.stream("rows", 1).words(size),
        key.stream("dense").words(size),
        key.derive("rows").stream("rows").words(size),
        key.derive("rows", 1).stream("rows").words(size),
        NoiseKey.from_seed(2, cipher=cipher).stream("rows").words(size),
    ]
    for words in streams:
        ones = np.unpackbits(words.view(np.uint8)).reshape(size, 64).sum(0)
        assert stats.chi2.sf((((ones - size / 2) / np.sqrt(size / 4)) ** 2).sum(), 64) > FALSE_ALARM
    off = np.corrcoef(np.array(streams, dtype=float))[np.triu_indices(len(streams), 1)] * np.sqrt(size)
    assert stats.chi2.sf((off**2).sum(), len(off)) > FALSE_ALARM
    assert len(np.unique(np.concatenate(streams))) == len(streams) * size


def test_all_of_the_key_matters() -> None:
    """torch's own CPU seed keeps 32 bits; keys that differ in the last byte alone still give other noise."""
    first, second = NoiseKey(bytes(32)), NoiseKey(bytes(31) + b"\x01")
    assert not (first.stream("x").words(100) == second.stream("x").words(100)).any()


def test_no_two_purposes_share_a_stream() -> None:
    key = NoiseKey.from_seed(1)
    named = [("a", 1), ("a/1", 0), ("a", 11), ("a/1", 1), ("1/a", 1), ("", 1)]
    found = {bytes(draw.words(4)) for pair in named for draw in (key.stream(*pair), key.derive(*pair).stream("x"))}
    assert len(found) == 12


def test_fresh_keys_differ_and_fixed_ones_do_not() -> None:
    assert NoiseKey.fresh().secret != NoiseKey.fresh().secret
    assert NoiseKey.from_seed(5) == NoiseKey.from_seed(5)
    assert NoiseKey.from_seed(5).fixed and not NoiseKey.fresh().fixed
    assert NoiseKey.from_seed(5).derive("period", 2).fixed and not NoiseKey.fresh().derive("period", 2).fixed


def test_one_seed_gives_each_purpose_its_own_key() -> None:
    assert NoiseKey.from_seed(5, "run a") != NoiseKey.from_seed(5, "run b")


def test_derived_keys_do_not_show_the_key() -> None:
    key = NoiseKey.fresh()
    derived = key.derive("period", 1)
    assert derived != key and derived != key.derive("period", 2)
    assert derived.secret != hashlib.sha3_256(key.secret).digest()


def test_the_key_is_not_printed() -> None:
    key = NoiseKey.fresh()
    assert repr(key.secret) not in repr(key) and key.secret.hex() not in repr(key)


def test_a_key_of_one_cipher_derives_none_of_the_other() -> None:
    first, second = (NoiseKey.from_seed(5, cipher=cipher) for cipher in CIPHERS)
    assert first.secret == second.secret and first != second
    assert first.derive("period", 1).secret != second.derive("period", 1).secret
    assert second.derive("period", 1).cipher == CHACHA == NoiseKey.fresh(CHACHA).cipher
    assert not (first.stream("x").words(100) == second.stream("x").words(100)).any()


def test_a_state_that_names_no_cipher_is_of_aes() -> None:
    for key in (NoiseKey.fresh(), NoiseKey.fresh(CHACHA)):
        state = key.state()
        assert NoiseKey.of_state(state, fixed=False) == key and ("cipher" in state) == (key.cipher == CHACHA)
    with pytest.raises(UserError, match="cipher='des' must be one of aes256-ctr, chacha20/1"):
        NoiseKey.of_state({**NoiseKey.fresh().state(), "cipher": "des"}, fixed=False)


def test_a_gpu_has_chacha20_by_default() -> None:
    assert [default_cipher(torch.device(kind)) for kind in ("cpu", "cuda")] == [AES, CHACHA]


def test_short_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        NoiseKey(b"short")
