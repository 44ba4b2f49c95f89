"""The property pack: what pytest and `epdsim check` run against any system under test, from a clone or an installed epdsim.

The files name properties and the ways to come by cases. Which system the cases are put to is an option of the run (`--epd-sut`).
"""
