"""Data: sizes, checksums, augmentation compared with torchvision, and text."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from iglu_lab.data import augment, cifar, data_folder, embedded, text
from iglu_lab.data.augment import Augmentation, Jitter
from iglu_lab.data.images import Images, ImageSet
from iglu_lab.data.longtail import class_sizes, class_weights, long_tailed

PAPER = Augmentation(None, 4, True, Jitter(0.2, 0.2, 0.2, 0.1))


def _folder_with(*names: str) -> Path:
    """The folder with the real data; the test is skipped if any of these is missing."""
    folder = data_folder()
    if not all((folder / name).exists() for name in names):
        pytest.skip(f"needs {', '.join(names)} in the folder named by IGLU_DATA")
    return folder


# -- long tails ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "total"), [(10, 19573), (20, 15907), (50, 12608), (100, 10847), (200, 9502), (500, 8155)]
)
def test_cifar100_lt_has_the_published_sizes(ratio: float, total: int) -> None:
    sizes = class_sizes(500, 100, ratio)
    assert sum(sizes) == total
    assert sizes[0] == 500
    assert sizes[-1] == 500 // ratio


@pytest.mark.parametrize("profile", ["exponential", "step"])
@pytest.mark.parametrize("ratio", [1, 3.7, 100, 1e6])
def test_class_sizes_fall_and_never_reach_zero(ratio: float, profile: str) -> None:
    sizes = class_sizes(500, 10, ratio, profile)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 500
    assert sizes[-1] == max(int(500 / ratio), 1)


def test_a_ratio_below_one_raises() -> None:
    with pytest.raises(ValueError, match=r"ratio must be at least 1.*got 0\.5"):
        class_sizes(500, 10, 0.5)


def _toy_set(count: int = 60, classes: int = 3) -> ImageSet:
    labels = torch.arange(count) % classes
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4).contiguous()
    return ImageSet(Images(pixels, labels), Images(pixels, labels), classes, (0.5,) * 3, (0.2,) * 3)


def test_a_long_tail_keeps_images_with_their_labels_and_the_complete_test_set() -> None:
    data = _toy_set()
    tail = long_tailed(data, ratio=4, seed=1)
    assert tail.counts().tolist() == [20, 10, 5]
    assert torch.equal(tail.train.pixels[:, 0, 0, 0].long() % 3, tail.train.labels)
    assert torch.equal(tail.test.labels, data.test.labels)


def test_the_images_of_a_long_tail_depend_on_the_seed() -> None:
    first, again, other = (long_tailed(_toy_set(), 4, seed=seed).train.pixels for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_authors_draw_is_that_of_numpys_legacy_generator() -> None:
    """Spelled out for two classes of four images: one generator for both, each shuffled and cut."""
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    images = Images(torch.arange(8, dtype=torch.uint8).view(8, 1, 1, 1), labels)
    data = ImageSet(images, images, 2, (0.5,), (0.5,))
    generator = np.random.RandomState(0)
    first, second = np.array([0, 2, 4, 6]), np.array([1, 3, 5, 7])
    generator.shuffle(first)
    generator.shuffle(second)
    drawn = long_tailed(data, 2.0, subset="authors")
    assert drawn.train.pixels.flatten().tolist() == sorted([*first[:4].tolist(), *second[:2].tolist()])


def test_class_weights_are_inverse_to_the_counts_and_sum_to_the_number_of_classes() -> None:
    counts = torch.tensor([500, 50, 5])
    weights = class_weights(counts)
    assert weights.sum().item() == pytest.approx(3)
    assert torch.allclose(weights * counts, (weights * counts)[0].expand(3))


# -- augmentation ----------------------------------------------------------------------------------


def _images(count: int = 48, size: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(count, 3, size, size, generator=generator)
    images[0] = 0.5  # grey: no hue
    images[1] = 0.0
    images[2, 1:] = 0.0  # pure red
    return images


def test_jitter_equals_torchvision_image_by_image_with_the_same_draws() -> None:
    functional = pytest.importorskip("torchvision.transforms.functional")
    adjust = (
        functional.adjust_brightness,
        functional.adjust_contrast,
        functional.adjust_saturation,
        functional.adjust_hue,
    )
    images = _images()
    draws = augment.draw(len(images), Augmentation(jitter=Jitter(0.6, 0.6, 0.6, 0.5)), torch.Generator())
    ours = augment.jitter(images.clone(), draws.factors, draws.order)
    for image, factors, order, found in zip(images, draws.factors, draws.order, ours, strict=True):
        expected = image
        for index in order.tolist():
            expected = adjust[index](expected, factors[index].item())
        torch.testing.assert_close(found, expected, rtol=0, atol=3e-6)


def test_jitter_draws_fill_the_ranges_of_torchvision_and_every_order_occurs() -> None:
    draws = augment.draw(20_000, PAPER, torch.Generator().manual_seed(0))
    low, high = draws.factors.amin(0), draws.factors.amax(0)
    torch.testing.assert_close(low, torch.tensor([0.8, 0.8, 0.8, -0.1]), rtol=0, atol=1e-3)
    torch.testing.assert_close(high, torch.tensor([1.2, 1.2, 1.2, 0.1]), rtol=0, atol=1e-3)
    codes = (draws.order * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = torch.unique(codes, return_counts=True)[1]
    assert len(counts) == 24
    # 833 expected of each; six standard deviations are 170.
    assert (counts - 20_000 / 24).abs().max() < 170


def test_a_crop_is_the_window_of_the_framed_image() -> None:
    pixels = torch.randint(1, 256, (5, 3, 8, 8), dtype=torch.uint8)
    shift = torch.tensor([[0, 0], [4, 4], [8, 8], [1, 7], [5, 2]])
    found = augment.crop(pixels, shift, 4)
    for image, (down, right), window in zip(pixels.numpy(), shift.tolist(), found.numpy(), strict=True):
        framed = np.pad(image, ((0, 0), (4, 4), (4, 4)))
        assert (framed[:, down : down + 8, right : right + 8] == window).all()


def test_all_crops_and_both_orientations_are_drawn() -> None:
    draws = augment.draw(5_000, PAPER, torch.Generator().manual_seed(0))
    assert len(torch.unique(draws.shift, dim=0)) == 81
    assert 2_300 < draws.flip.sum() < 2_700


def test_without_jitter_the_augmented_image_is_made_of_the_original_pixels() -> None:
    pixels = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    plain = Augmentation(padding=0, flip=True)
    draws = augment.draw(6, plain, torch.Generator().manual_seed(1))
    found = augment.apply(pixels, draws, plain)
    for image, flipped, result in zip(pixels, draws.flip, found, strict=True):
        torch.testing.assert_close(result, (image.flip(-1) if flipped else image) / 255)


def test_a_part_of_a_batch_is_augmented_as_in_the_complete_batch() -> None:
    pixels = torch.randint(0, 256, (10, 3, 16, 16), dtype=torch.uint8)
    draws = augment.draw(10, PAPER, torch.Generator().manual_seed(3))
    complete = augment.apply(pixels, draws, PAPER)
    share = augment.apply(pixels[6:], draws.take(slice(6, None)), PAPER)
    torch.testing.assert_close(share, complete[6:], rtol=0, atol=1e-6)


def test_an_image_that_shrinks_is_smoothed_and_keeps_its_mean() -> None:
    """Of every four columns the outer two are white; a resize by only the two nearest would give black."""
    pixels = torch.tensor([255, 0, 0, 255], dtype=torch.uint8).repeat(1, 3, 32, 8)
    assert augment.resize(pixels, 8).mean().item() == pytest.approx(0.5, abs=0.02)


def test_resize_comes_before_the_crop() -> None:
    augmentation = Augmentation(size=24, padding=2)
    draws = augment.draw(4, augmentation, torch.Generator())
    found = augment.apply(torch.full((4, 3, 8, 8), 255, dtype=torch.uint8), draws, augmentation)
    assert found.shape == (4, 3, 24, 24)
    # Black comes in from the frame alone, so at most two full rows and columns of it.
    assert (found[:, 0].sum((1, 2)) >= 22 * 22).all()


# -- CIFAR -----------------------------------------------------------------------------------------


class _Bomb:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_file_that_is_not_the_published_one_is_named_and_never_unpickled(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(pickle.dumps(_Bomb(tmp_path / "exploded")))
    with pytest.raises(
        ValueError, match=r"cifar-100-python/train is not the published file.*Remove the folder"
    ):
        cifar.load("cifar100", tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(FileNotFoundError, match=r"data_batch_1 is missing.*https://"):
        cifar.load("cifar10", tmp_path)


@pytest.fixture
def toy_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[cifar.Archive]:
    """An archive in the layout of CIFAR-10, served on this machine, under the name "toy"."""
    (tmp_path / "data").mkdir()
    generator = np.random.default_rng(0)
    site = tmp_path / "site"
    (site / "toy-batches-py").mkdir(parents=True)
    files = {}
    for name in ("data_batch_1", "test_batch"):
        pixels = generator.integers(0, 256, (20, 3072), dtype=np.uint8)
        content = pickle.dumps({b"data": pixels, b"labels": [k % 10 for k in range(20)]})
        (site / "toy-batches-py" / name).write_bytes(content)
        files[name] = hashlib.sha256(content).hexdigest()
    packed = Path(shutil.make_archive(str(site / "toy"), "gztar", site, "toy-batches-py"))
    handler = functools.partial(_QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        archive = cifar.ARCHIVES["cifar10"]._replace(
            folder="toy-batches-py",
            url=f"http://127.0.0.1:{server.server_port}/toy.tar.gz",
            sha256=hashlib.sha256(packed.read_bytes()).hexdigest(),
            train={"data_batch_1": files["data_batch_1"]},
            test={"test_batch": files["test_batch"]},
        )
        monkeypatch.setitem(cifar.ARCHIVES, "toy", archive)
        yield archive
        server.shutdown()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_folder_that_does_not_exist_is_named_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"dta does not exist"):
        cifar.load("cifar10", tmp_path / "dta")
    assert not (tmp_path / "dta").exists()


def test_an_archive_is_downloaded_unpacked_and_read(toy_archive: cifar.Archive, tmp_path: Path) -> None:
    data = cifar.load("toy", tmp_path / "data")
    assert data.counts().tolist() == [2] * 10
    original = pickle.loads((tmp_path / "site" / "toy-batches-py" / "test_batch").read_bytes())
    assert data.test.pixels.flatten(1).tolist() == original[b"data"].tolist()


def test_an_archive_with_another_checksum_raises(
    toy_archive: cifar.Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cifar.ARCHIVES, "toy", toy_archive._replace(sha256="0" * 64))
    with pytest.raises(ValueError, match="hash"):
        cifar.load("toy", tmp_path / "data")
    assert not (tmp_path / "data" / "toy-batches-py").exists()


def test_without_a_network_the_error_says_what_to_do(
    toy_archive: cifar.Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cifar.ARCHIVES, "toy", toy_archive._replace(url="http://127.0.0.1:9/toy.tar.gz"))
    with pytest.raises(OSError, match=r"Could not download http.*IGLU_DATA") as caught:
        cifar.load("toy", tmp_path / "data")
    assert "Connection refused" in str(caught.value)
    for wrapper in ("Pool(", "Caused by", "Errno"):  # the exceptions around it
        assert wrapper not in str(caught.value)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_is_complete_and_balanced(name: str, classes: int) -> None:
    folder = _folder_with(cifar.ARCHIVES[name].folder)
    data = cifar.load(name, folder)
    assert data.train.pixels.shape == (50_000, 3, 32, 32)
    assert data.counts().tolist() == [50_000 // classes] * classes
    assert torch.bincount(data.test.labels).tolist() == [10_000 // classes] * classes
    mean = data.train.pixels.float().mean((0, 2, 3)) / 255
    torch.testing.assert_close(mean, torch.tensor(data.mean), rtol=0, atol=3e-4)


def test_the_data_folder_is_the_argument_or_else_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGLU_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("elsewhere") == Path("elsewhere")


# -- embedded --------------------------------------------------------------------------------------


def test_digits_have_a_balanced_test_set_that_shares_no_image_with_training() -> None:
    data = embedded.digits()
    assert len(data.train.labels) + len(data.test.labels) == 1797
    assert torch.bincount(data.test.labels).tolist() == [50] * 10
    assert int(data.counts().min()) == 124
    unit = data.train.pixels.double() / 255
    assert unit.mean().item() == pytest.approx(data.mean[0])


def test_no_paragraph_of_the_python_reference_occurs_twice() -> None:
    paragraphs = embedded.python_reference().split("\n\n")
    assert len(paragraphs) == len(set(paragraphs)) > 1000


# -- text ------------------------------------------------------------------------------------------


def _write_splits(folder: Path, pattern: str, valid: str = "valid") -> None:
    folder.mkdir()
    for split, words in (("train", "one two three\n" * 50), (valid, "four\n" * 9), ("test", "five\n" * 9)):
        (folder / pattern.format(split)).write_text(words)


@pytest.mark.parametrize("pattern", ["{}.txt", "wiki.{}.tokens", "wiki.{}.raw"])
def test_the_usual_names_of_the_splits_are_found(tmp_path: Path, pattern: str) -> None:
    _write_splits(tmp_path / "wikitext-103", pattern)
    data = text.load("wikitext-103", tmp_path, "bytes", tmp_path / "cache")
    assert bytes(data.train.tolist()).decode() == "one two three\n" * 50
    assert bytes(data.valid.tolist()).decode() == "four\n" * 9
    assert bytes(data.test.tolist()).decode() == "five\n" * 9


def test_text_saved_by_datasets_gives_the_tokens_of_the_files(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    _write_splits(tmp_path / "files", "{}.txt")
    columns = {
        name: datasets.Dataset.from_dict(
            {"text": (tmp_path / "files" / f"{split}.txt").read_text().splitlines(True)}
        )
        for name, split in (("train", "train"), ("validation", "valid"), ("test", "test"))
    }
    datasets.DatasetDict(columns).save_to_disk(str(tmp_path / "saved"))
    from_files = text.load("files", tmp_path, "bytes", tmp_path / "cache")
    from_datasets = text.load("saved", tmp_path, "bytes", tmp_path / "cache")
    for ours, theirs in zip(from_files[:3], from_datasets[:3], strict=True):
        assert ours.tolist() == theirs.tolist()


_IN_FILES = [" \n", " = Title = \n", " \n", " One line . \n"]
_ON_THE_HUB = ["", " = Title = \n", "", " One line . \n"]


@pytest.mark.parametrize("source", ["files", "hub"])
def test_wikitext_is_the_same_text_wherever_it_comes_from(source: str, tmp_path: Path) -> None:
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    if source == "hub":
        datasets = pytest.importorskip("datasets")
        column = datasets.Dataset.from_dict({"text": _ON_THE_HUB})
        names = ("train", "validation", "test")
        datasets.DatasetDict(dict.fromkeys(names, column)).save_to_disk(str(folder))
    for split in text.SPLITS if source == "files" else ():
        (folder / f"{split}.txt").write_text("".join(_IN_FILES))
    data = text.load("wikitext-2", tmp_path, "bytes", tmp_path / "cache")
    assert [bytes(part.tolist()).decode() for part in data[:3]] == ["".join(_ON_THE_HUB)] * 3


def test_blank_lines_of_other_texts_are_kept(tmp_path: Path) -> None:
    (tmp_path / "verses").mkdir()
    for split in text.SPLITS:
        (tmp_path / "verses" / f"{split}.txt").write_text("one\n\n two\n \n")
    data = text.load("verses", tmp_path, "bytes", tmp_path / "cache")
    assert bytes(data.test.tolist()).decode() == "one\n\n two\n \n"


def test_the_test_text_of_wikitext_has_the_292943_tokens_of_the_hub(tmp_path: Path) -> None:
    folder = _folder_with("gpt2-bpe", "wikitext-2")
    (tmp_path / "wikitext-2").mkdir()
    for split in text.SPLITS:  # the training text would take a while
        shutil.copy(folder / "wikitext-2" / "test.txt", tmp_path / "wikitext-2" / f"{split}.txt")
    shutil.copytree(folder / "gpt2-bpe", tmp_path / "gpt2-bpe")
    assert len(text.load("wikitext-2", tmp_path, "gpt2", tmp_path / "cache").test) == 292_943


def test_a_plain_file_is_cut_into_disjoint_splits_that_make_up_the_file(tmp_path: Path) -> None:
    content = "".join(f"line {number}: naïve\n" for number in range(400))
    (tmp_path / "book.txt").write_text(content, encoding="utf-8")
    data = text.load("book.txt", tmp_path, "bytes", tmp_path / "cache")
    assert b"".join(bytes(part.tolist()) for part in data[:3]).decode() == content
    lines = [bytes(part.tolist()).count(b"\n") for part in data[:3]]
    assert lines == [360, 20, 20]  # a twentieth each for validation and for testing


def test_text_is_tokenized_once_and_again_when_it_changes(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _write_splits(tmp_path / "set", "{}.txt")
    text.load("set", tmp_path, "bytes", cache)
    before = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    text.load("set", tmp_path, "bytes", cache)
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    (tmp_path / "set" / "test.txt").write_text("six\n")
    assert bytes(text.load("set", tmp_path, "bytes", cache).test.tolist()) == b"six\n"
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("damage", ["cut short", "zeroed", "one bit", "swapped", "empty"])
def test_a_damaged_cache_of_tokens_is_detected_and_rebuilt(damage: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _write_splits(tmp_path / "set", "{}.txt")
    complete = text.load("set", tmp_path, "bytes", cache).train.tolist()
    train, other = sorted(cache.iterdir(), key=lambda path: -path.stat().st_size)[:2]
    content = bytearray(train.read_bytes())
    content[101] ^= damage == "one bit"
    damaged = {
        "cut short": content[:-2], "zeroed": bytes(len(content)), "swapped": other.read_bytes(), "empty": b"",
    }.get(damage, content)  # fmt: skip
    train.write_bytes(damaged)
    with pytest.warns(UserWarning, match=rf"{train.name} is damaged"):
        again = text.load("set", tmp_path, "bytes", cache)
    assert again.train.tolist() == complete
    text.load("set", tmp_path, "bytes", cache)  # warnings are errors
    assert len(list(cache.iterdir())) == 3


def test_blocks_are_consecutive_tokens_without_the_rest() -> None:
    data = text.TextSet(torch.arange(10), torch.arange(2), torch.arange(4), 256, torch.ones(256))
    assert data.blocks("train", 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match=r"valid text has 2 tokens, .* block of 4"):
        data.blocks("valid", 4)


def test_an_unknown_text_raises_with_the_files_that_were_tried(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No text 'novel' in .*train\.txt.*IGLU_DATA"):
        text.load("novel", tmp_path, "bytes", tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"encoder\.json and vocab\.bpe or vocab\.json and merges\.txt"
    ):
        text.load("python", tmp_path, "gpt2", tmp_path)


def test_gpt2_tokens_are_those_of_gpt2(tmp_path: Path) -> None:
    folder = _folder_with("gpt2-bpe")
    tokenizer = text.load_tokenizer("gpt2", folder)
    assert tokenizer.vocabulary == 50_257
    # Published: 15496 is "Hello", 11 a comma, 995 " world".
    assert next(tokenizer.encode(["Hello, world"])).tolist() == [15496, 11, 995]
    for name in ("encoder.json", "vocab.bpe"):
        other = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}[name]
        shutil.copy(folder / "gpt2-bpe" / name, tmp_path / other)
    renamed = text.load_tokenizer("gpt2", tmp_path)
    assert next(renamed.encode(["Hello, world"])).tolist() == [15496, 11, 995]


def test_tiny_shakespeare_has_its_338025_tokens() -> None:
    folder = _folder_with("gpt2-bpe", "tinyshakespeare")
    tokenizer = text.load_tokenizer("gpt2", folder)
    complete = (folder / "tinyshakespeare" / "input.txt").read_text()
    assert sum(map(len, tokenizer.encode([complete]))) == 338_025


def _merged(word: bytes, merges: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Byte-pair encoding by its definition: the earliest merge first, wherever it applies."""
    parts = [bytes([byte]) for byte in word]
    for left, right in merges:
        place = 0
        while place < len(parts) - 1:
            if (parts[place], parts[place + 1]) == (left, right):
                parts[place : place + 2] = [left + right]
            place += 1
    return parts


def test_a_smaller_gpt2_vocabulary_uses_the_first_merges_alone() -> None:
    folder = _folder_with("gpt2-bpe")
    tokenizer = text.load_tokenizer("gpt2:4096", folder)
    assert tokenizer.vocabulary == len(tokenizer.lengths) == 4096
    lines = (folder / "gpt2-bpe" / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:3841]
    # plain letters stand for themselves in that file
    merges = [tuple(part.encode() for part in line.split()) for line in lines if line.isascii()]
    for word in (b"unbelievable", b"thermodynamics", b"Wolverhampton"):
        tokens = next(tokenizer.encode([word.decode()]))
        assert tokens.max() < 4096
        assert tokenizer.lengths[tokens.tolist()].tolist() == [len(part) for part in _merged(word, merges)]


def test_a_token_is_as_long_as_its_bytes() -> None:
    folder = _folder_with("gpt2-bpe")
    words = "naïve — 12 → 日本\n"
    for name in ("bytes", "gpt2:300", "gpt2"):
        tokenizer = text.load_tokenizer(name, folder)
        lengths = tokenizer.lengths[next(tokenizer.encode([words])).tolist()]
        assert int(lengths.sum()) == len(words.encode())


def test_more_tokens_than_gpt2_has_raise() -> None:
    with pytest.raises(ValueError, match="more than the 50256 tokens"):
        text.load_tokenizer("gpt2:60000", _folder_with("gpt2-bpe"))
