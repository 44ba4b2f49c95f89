"""Laws that hold for every family and size."""

from hypothesis import assume, given
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.core.items import TensorHandle
from epdsim.media import families, family

PICTURED = [name for name in families() if "image" in family(name).modalities]
FILMED = [name for name in families() if "video" in family(name).modalities]
HEARD = [name for name in families() if "audio" in family(name).modalities]
QWEN = [name for name in PICTURED if name.startswith("qwen")]
TURNABLE = [name for name in PICTURED if not name.startswith("internvl")]
sides = st.integers(1, 5000)
frames = st.integers(1, 40)


def rendered(layout, *arguments):
    try:
        return layout(*arguments)
    except InputError:
        assume(False)


def check(one, media):
    item, mask = media.item, media.is_embed
    assert media.num_tokens >= media.num_embeds >= 1
    assert media.num_embeds == (media.num_tokens if mask is None else mask.count(1))
    assert mask is None or (len(mask) == media.num_tokens and set(mask) <= {0, 1} and 0 in mask)
    assert media.payload_bytes == sum(field.nbytes for field in item.fields.values()) > 0
    assert media.embedding_bytes % media.num_embeds == 0
    assert media.encoder_patches >= media.encoder_groups >= 1
    read = one.position_fields.get(media.modality, frozenset())
    assert read <= set(item.fields)
    assert all(item.fields[name].keep_on_cpu for name in read)
    for field in item.fields.values():
        if isinstance(field.data, TensorHandle) and field.data.source is not None:
            assert len(field.data.source) == field.data.nbytes
    largest = max(item.fields.values(), key=lambda field: field.nbytes)
    assert not largest.keep_on_cpu or media.modality == "audio"


@given(name=st.sampled_from(PICTURED), height=sides, width=sides)
def test_pictures(name, height, width):
    one = family(name)
    check(one, rendered(one.image, height, width))


@given(
    name=st.sampled_from(FILMED),
    num_frames=frames,
    height=sides,
    width=sides,
    fps=st.sampled_from([0.5, 1, 2, 3, 29.97]),
)
def test_clips(name, num_frames, height, width, fps):
    one = family(name)
    media = rendered(one.video, num_frames, height, width, fps)
    check(one, media)
    if media.is_embed is not None:
        runs = [run for run in media.is_embed.split(b"\0") if run]
        assert len({len(run) for run in runs}) == 1
        assert len(runs) == media.encoder_groups


@given(name=st.sampled_from(HEARD), seconds=st.floats(0.05, 400))
def test_sounds(name, seconds):
    one = family(name)
    media = one.audio(seconds)
    check(one, media)
    assert media.num_embeds >= rendered(one.audio, seconds / 2).num_embeds


@given(name=st.sampled_from(QWEN), height=sides, width=sides)
def test_qwen_grids_stay_within_the_limits(name, height, width):
    one = family(name)
    media = rendered(one.image, height, width)
    steps, rows, columns = media.item.fields["image_grid_thw"].data.flat_values()
    assert steps * rows * columns == media.encoder_patches == 4 * media.num_tokens
    area = rows * columns * one.patch**2
    slim = min(rows, columns) == one.merge
    assert area >= one.min_pixels
    assert area <= one.max_pixels or slim
    again = rendered(one.image, rows * one.patch, columns * one.patch)
    assert again.num_tokens == media.num_tokens


@given(name=st.sampled_from(TURNABLE), height=sides, width=sides)
def test_a_turned_picture_takes_as_many_embeddings(name, height, width):
    one = family(name)
    upright, turned = rendered(one.image, height, width), rendered(one.image, width, height)
    assert upright.num_embeds == turned.num_embeds
    assert upright.payload_bytes == turned.payload_bytes


@given(name=st.sampled_from(QWEN), height=sides, width=sides)
def test_size_for_tokens_comes_near_every_count_that_a_picture_has(name, height, width):
    one = family(name)
    wanted = rendered(one.image, height, width).num_tokens
    found = one.image(*one.image_size_for_tokens(wanted)).num_tokens
    assert abs(found - wanted) <= max(4, wanted // 1000)


@given(name=st.sampled_from(PICTURED), wanted=st.integers(1, 20_000), height=sides, width=sides)
def test_size_for_tokens_is_a_size_that_the_family_takes(name, wanted, height, width):
    one = family(name)
    size = one.image_size_for_tokens(wanted)
    assert one.image(*size).num_tokens >= 1
    assert one.image_size_for_tokens(wanted) == size


@given(budget=st.sampled_from([70, 140, 280, 560, 1120]), height=sides, width=sides)
def test_gemma_4_fills_its_budget_whatever_the_picture(budget, height, width):
    one = family("gemma-4-31b", max_soft_tokens=budget)
    media = one.image(height, width)
    assert budget // 4 < media.num_embeds <= budget
    assert media.payload_bytes == budget * 9 * (768 * 4 + 2 * 8)
