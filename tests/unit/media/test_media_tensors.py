"""Tensors behind the handles of a rendered item."""

import pytest
import torch

from epdsim.core.items import Field, MediaItem, TensorHandle
from epdsim.media import families, family
from epdsim.media.tensors import as_meta, materialise


def each():
    for name in families():
        one = family(name)
        if "image" in one.modalities:
            yield pytest.param(one.image(64, 96).item, id=f"{name} image")
        if "video" in one.modalities:
            yield pytest.param(one.video(3, 40, 40).item, id=f"{name} video")
        if "audio" in one.modalities:
            yield pytest.param(one.audio(1.3).item, id=f"{name} audio")


ITEMS = list(each())


def handles(item):
    return {name: one.data for name, one in item.fields.items() if isinstance(one.data, TensorHandle)}


@pytest.mark.parametrize("item", ITEMS)
def test_materialise_keeps_what_the_handle_says(item):
    real = materialise(item, "cat")
    assert list(real.fields) == list(item.fields)
    for name, one in item.fields.items():
        assert real.fields[name].kind == one.kind
        if not isinstance(one.data, TensorHandle):
            assert real.fields[name].data == one.data
            continue
        handle = real.fields[name].data
        tensor = handle.source
        assert (handle.dtype, handle.shape) == (one.data.dtype, one.data.shape)
        assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{one.data.dtype}", one.data.shape)
        assert tensor.device.type == "cpu"
        assert tensor.nbytes == one.data.nbytes
        assert torch.isfinite(tensor).all()
        if one.data.source is not None:
            assert tensor.flatten().tolist() == one.data.flat_values()
    assert real.nbytes == item.nbytes


@pytest.mark.parametrize("item", ITEMS)
def test_meta_tensors_have_sizes_and_keep_known_values(item):
    meta = as_meta(item)
    for name, handle in handles(item).items():
        source = meta.fields[name].data.source
        if handle.source is not None:
            assert source is handle.source
        else:
            assert source.is_meta
            assert (str(source.dtype), tuple(source.shape)) == (f"torch.{handle.dtype}", handle.shape)
    assert meta.nbytes == item.nbytes


def test_content_decides_the_values():
    item = family("qwen3-vl-8b", wire_dtype="float32").image(96, 64).item
    first, again, other = (materialise(item, content) for content in ("cat", "cat", "dog"))
    pixels = [one.fields["pixel_values"].data for one in (first, again, other)]
    assert torch.equal(pixels[0].source, pixels[1].source)
    assert pixels[0] == pixels[1]
    assert not torch.equal(pixels[0].source, pixels[2].source)
    assert pixels[0] != pixels[2]
    spread = pixels[0].source
    assert -1 <= spread.min() < -0.9
    assert 0.9 < spread.max() < 1
    assert spread.mean().abs() < 0.01


def test_fields_of_one_item_differ():
    item = MediaItem(
        {
            name: Field(
                TensorHandle("float32", (64,)), family("llava-1.5-7b").image(1, 1).item.fields["pixel_values"].kind
            )
            for name in "ab"
        }
    )
    real = materialise(item, "cat")
    assert not torch.equal(real.fields["a"].data.source, real.fields["b"].data.source)


def test_nested_data():
    kind = family("llava-1.5-7b").image(1, 1).item.fields["pixel_values"].kind
    nested = (TensorHandle("bfloat16", (2, 3)), (TensorHandle("uint8", (4,)), 5, 0.5))
    first, (second, five, half) = materialise(MediaItem({"x": Field(nested, kind)}), "cat").fields["x"].data
    assert tuple(first.source.shape) == (2, 3)
    assert second.source.dtype is torch.uint8
    assert (five, half) == (5, 0.5)


def test_a_tensor_that_is_there_stays():
    tensor = torch.arange(6, dtype=torch.int64)
    kind = family("llava-1.5-7b").image(1, 1).item.fields["pixel_values"].kind
    item = MediaItem({"x": Field(TensorHandle("int64", (6,), tensor), kind)})
    assert materialise(item, "cat").fields["x"].data.source is tensor
    assert as_meta(item).fields["x"].data.source is tensor
