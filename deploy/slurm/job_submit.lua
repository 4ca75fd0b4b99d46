-- Holds jobs whose comment begins with the word cotenant and that ask for no GPU themselves, until `cotenant engine slurm
-- --place` gives them one. It reads and writes nothing, waits for nothing and refuses nothing: slurmctld runs it under its locks.

local function is_for_cotenant(job_desc)
   local comment = job_desc.comment
   return comment ~= nil and (comment == "cotenant" or string.match(comment, "^cotenant%s") ~= nil)
end

-- Newer versions note --cpus-per-task there too, as cpu=4.
local function names_gres(tres)
   return tres ~= nil and string.find(tres, "gres", 1, true) ~= nil
end

local function asks_for_gpus(job_desc)
   return job_desc.tres_per_node ~= nil or job_desc.tres_per_job ~= nil
      or job_desc.tres_per_socket ~= nil or names_gres(job_desc.tres_per_task)
end

function slurm_job_submit(job_desc, part_list, submit_uid)
   local is_held_by_user = job_desc.priority == 0
   if is_for_cotenant(job_desc) and not asks_for_gpus(job_desc) and not is_held_by_user then
      job_desc.priority = 0
      job_desc.admin_comment = "cotenant: waits for its first decision"
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   return slurm.SUCCESS
end

return slurm.SUCCESS
