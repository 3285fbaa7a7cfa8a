"""What every test shares: hypothesis without a clock, because the machine may be busy."""

import hypothesis

hypothesis.settings.register_profile("stillframe", deadline=None, print_blob=True)
hypothesis.settings.load_profile("stillframe")
