import pytest
from matplotlib.image import imread


@pytest.mark.parametrize("name", ["curves", "eigenvalues", "memory"])
def test_plot_is_drawn(finished, name):
    image = imread(finished.folder / f"{name}.png")[..., :3]
    height, width, _ = image.shape
    assert height > 300
    assert width > 300
    grey = image.mean(-1)
    # paper, ink and more than one shade in between
    assert (grey > 0.99).mean() > 0.3
    assert (grey < 0.3).mean() > 0.001
    assert len(set((grey * 20).astype(int).flatten())) > 8
