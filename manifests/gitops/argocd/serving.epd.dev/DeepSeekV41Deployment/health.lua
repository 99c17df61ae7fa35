-- Ready is Healthy. What waiting will not mend, and what was available and is no longer, is Degraded.
local health = { status = "Progressing", message = "waiting for the operator" }

if obj.status == nil or obj.status.conditions == nil then
  return health
end
if obj.metadata.generation ~= nil and obj.status.observedGeneration ~= obj.metadata.generation then
  health.message = "waiting for the operator to see the last change"
  return health
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions) do
  conditions[condition.type] = condition
end
local ready = conditions["Ready"]
local stalled = conditions["Stalled"]
local available = conditions["Available"]
local valid = conditions["Valid"]

if ready ~= nil and ready.status == "True" then
  health.status = "Healthy"
  health.message = ready.message
  return health
end
if stalled ~= nil and stalled.status == "True" then
  health.status = "Degraded"
  health.message = stalled.reason .. ": " .. stalled.message
  return health
end
if available ~= nil and available.status == "False" then
  if available.reason == "ScaledToZero" then
    health.status = "Suspended"
    health.message = available.message
    return health
  end
  -- All conditions begin at one moment. Availability that turned over later was there once.
  if valid ~= nil and available.lastTransitionTime > valid.lastTransitionTime then
    health.status = "Degraded"
    health.message = available.reason .. ": " .. available.message
    return health
  end
end
if ready ~= nil then
  health.message = ready.reason .. ": " .. ready.message
end
return health
