"""What should exist for a resource, and what its status should say: one pure function.

The tricky idea: *identity is hashed from what the user wrote, and the rendered pod template is stored once beside it*
(a ControllerRevision per role and revision). A revision names pods that are alike; the stored template says what they
were, whatever release of the operator reads it. So an upgrade rolls nothing, going back finds the old set where it
was, and nothing has to be remembered outside the cluster.
"""

from epd_operator.plan.conditions.condition import Event
from epd_operator.plan.conditions.reason import Reason
from epd_operator.plan.decision import Plan, plan
from epd_operator.plan.observation import Observed, Settings
from epd_operator.plan.rollout import Ref

__all__ = ["Event", "Observed", "Plan", "Reason", "Ref", "Settings", "plan"]
